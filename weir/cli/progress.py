"""The display of a running job; the job never waits for the terminal.

The job's thread only folds events into the view and queues lines. A thread of the display's own
shows both, at most four times a second: in a terminal a live table with the lasting lines and
the pipeline's output above it, elsewhere the lines alone. It ends with the job.
"""

import io
import sys
from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Lock, Thread
from typing import IO, TextIO, cast

from rich.console import Console
from rich.live import Live

from weir.cli.job_view import JobView
from weir.cli.log_lines import PlainLog, introduction, memory_warning, summary
from weir.cli.table import render
from weir.common.clock import SystemClock
from weir.protocol.events import JobEvent

PERIOD_S = 0.25
_LINES_WAITING_MAX = (
    1_000  # Beyond it a stalled terminal loses the oldest lines; memory is bounded.
)
_PIECES_WAITING_MAX = 100_000  # Of the pipeline's own output, none of which may be lost.


class Progress:
    """Shows one job, from its announcement to its end."""

    def __init__(
        self,
        view: JobView,
        file: IO[str] | None = None,
        *,
        now_ms: Callable[[], float] | None = None,
    ) -> None:
        """Show on ``file``, standard error by default; as a table if it is a terminal.

        ``now_ms`` is the clock of the job, whose events carry its times.
        """
        self._view = view
        self._log = PlainLog(view)
        self._now_ms = now_ms or SystemClock().now_ms
        self._lock = Lock()
        self._lines: deque[str] = deque(maxlen=_LINES_WAITING_MAX)
        self._stop = Event()
        self._console = Console(
            file=sys.stderr if file is None else file, markup=False, highlight=False, emoji=False
        )
        self._live: Live | None = None
        self._printed: PrintedLines | None = None
        self._lines.append(introduction(view))
        if warning := memory_warning(view.config):
            self._lines.append(warning)
        self._flush_lines()
        self._thread = Thread(target=self._run, name="weir-progress", daemon=True)
        self._thread.start()

    def on_event(self, event: JobEvent) -> None:
        """Take in an event of the job; returns at once."""
        now = self._now_ms()
        live = self._console.is_terminal
        with self._lock:
            self._view.on_event(event, now)
            for line in self._log.on_event(event, now):
                if line.lasting or not live:
                    self._lines.append(line.text)

    def close(self) -> None:
        """Show the remaining lines and end the thread. Harmless when repeated."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            is_over = False
            while not is_over:
                is_over = self._stop.wait(PERIOD_S) or self._view.is_over
                self._turn()
            self._turn()  # Events that came between the last turn and the end.
        finally:
            self._end()
        if self._view.first_ms is not None:
            with self._lock:
                text = summary(self._view, self._now_ms())
            self._write(text)

    def _turn(self) -> None:
        if self._live is None and self._console.is_terminal and self._view.first_ms is not None:
            self._begin_live()
        if self._printed is not None and (text := self._printed.take()) is not None:
            self._write(text)
        self._flush_lines()
        if self._live is not None:
            with self._lock:
                picture = self._view.picture(self._now_ms())
            self._live.update(render(picture, self._console.width), refresh=True)

    def _begin_live(self) -> None:
        """Start the live table, at the job's first event: until then Spark prints its own lines."""
        with self._lock:
            picture = self._view.picture(self._now_ms())
        self._live = Live(
            render(picture, self._console.width),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
        )
        self._live.start()
        if sys.stdout.isatty():
            self._printed = PrintedLines(cast(TextIO, sys.stdout))
            sys.stdout = self._printed

    def _end(self) -> None:
        if self._live is not None:
            self._live.stop()
        if self._printed is not None:
            if sys.stdout is self._printed:
                sys.stdout = self._printed.under
            self._printed.end()

    def _flush_lines(self) -> None:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        if lines:
            self._write("\n".join(lines))

    def _write(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


class PrintedLines(io.TextIOBase):
    """Standard output while a table is shown below it: lines wait for the display's next turn."""

    def __init__(self, under: TextIO) -> None:
        self.under = under
        self._pieces: deque[str] = deque()
        self._changed = Condition()
        self._ended = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the terminal."""
        return self.under.encoding

    def write(self, text: str) -> int:
        with self._changed:
            while len(self._pieces) >= _PIECES_WAITING_MAX and not self._ended:
                self._changed.wait()  # The writer blocks, as on a slow terminal.
            if self._ended:  # The script kept a reference to this stream.
                return self.under.write(text)
            self._pieces.append(text)
        return len(text)

    def take(self) -> str | None:
        """The complete lines since the last call, without the last line end; None without any."""
        with self._changed:
            lines, end, rest = "".join(self._pieces).rpartition("\n")
            self._pieces.clear()
            if rest:
                self._pieces.append(rest)
            self._changed.notify_all()
        return lines if end else None

    def end(self) -> None:
        """Write the rest of an incomplete line; later writes go straight to the terminal."""
        with self._changed:
            self._ended = True
            self.under.write("".join(self._pieces))
            self._pieces.clear()
            self._changed.notify_all()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.under.fileno()
