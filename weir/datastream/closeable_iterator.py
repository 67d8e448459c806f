"""``CloseableIterator``: the iterator that ``execute_and_collect`` returns.

Its job runs in a thread of its own while this thread reads, so that the job is served however long
the reader takes. The job ends when it has nothing to do any more, or when its reader closes the
iterator or lets go of it.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any, Self

from weir.datastream.html import table_html
from weir.jobmaster.collected_output import RowStream

logger = logging.getLogger(__name__)


class CloseableIterator:
    """The records of ``execute_and_collect``, in order; also a context manager."""

    def __init__(self, rows: RowStream, run: Callable[[], object] | None = None) -> None:
        """Start ``run``, which fills ``rows``, in a thread; None: they have ended."""
        self._rows = rows
        self._thread: threading.Thread | None = None
        if run is not None:
            self._thread = threading.Thread(
                # The settings that the script was started with are context variables.
                target=copy_context().run,
                args=(_run, rows, run),
                name="weir-job",
                daemon=True,
            )
            self._thread.start()
            # Also at the end of the interpreter.
            weakref.finalize(self, _end, rows, self._thread)

    def _repr_html_(self) -> str:
        job = "closed" if self._rows.is_closed else "ended" if self._rows.has_ended else "runs"
        waiting = f"{self._rows.waiting_count:,} records"
        return table_html("CloseableIterator", [("job", job), ("not read yet", waiting)])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._rows.take()
        except KeyboardInterrupt:
            self.close()
            raise
        except BaseException:
            self._join()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def next(self) -> Any:
        """The next record; waits for it while the job runs.

        Raises:
            StopIteration: All records were read, or the iterator is closed.
            WeirError: The job failed, or could not be started, as from ``env.execute``. All
                records that it delivered before were read.
        """
        return next(self)

    def close(self) -> None:
        """End the job, if it still runs, and drop the records that were not read."""
        self._rows.close()
        self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()


def _run(rows: RowStream, run: Callable[[], object]) -> None:
    error: BaseException | None = None
    try:
        run()
    except BaseException as raised:  # It is raised again, in the reader's thread.
        error = raised
    if error is not None and rows.is_closed:
        logger.warning("the job failed before its closed iterator could end it: %s", error)
    rows.end(error)


def _end(rows: RowStream, thread: threading.Thread) -> None:
    rows.close()
    if thread is not threading.current_thread():  # The collector of garbage runs in any thread.
        thread.join()
