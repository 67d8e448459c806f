"""The view of a job in a notebook: one small table below the cell, changed while the job runs.

At the end it is the result's. Events are taken in on the job's thread, so a table is made at most
twice a second, but for changes of the job's status.
"""

from collections.abc import Callable
from datetime import datetime

from weir.common.notebook import CellOutput
from weir.common.tracebacks import headline_of
from weir.config import JobConfig
from weir.datastream.execution import JobExecutionResult
from weir.datastream.html import NOTES_MAX, table_html
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import JobId
from weir.jobmaster.history import JobHistory
from weir.protocol.events import JobChanged, JobEvent

PERIOD_NS = 500_000_000


class NotebookView:
    """Shows one job, by a history that has each event before the view has it."""

    def __init__(
        self,
        job_id: JobId,
        graph: JobGraph,
        config: JobConfig,
        history: JobHistory,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._job_id = job_id
        self._name = graph.name
        self._sources = ExecutionGraph(graph).source_subtasks
        self._config = config.checkpoints
        self._history = history
        self._monotonic_ns = monotonic_ns
        self._output = CellOutput()
        self._due_ns = monotonic_ns()

    def on_event(self, event: JobEvent) -> None:
        """Show the job if its status has changed, or the table is old."""
        now = self._monotonic_ns()
        if isinstance(event, JobChanged) or now >= self._due_ns:
            self._due_ns = now + PERIOD_NS
            self._output.show(table_html(self._name, self._rows()), self._line())

    def show_result(self, result: JobExecutionResult) -> None:
        """Let the table become the result's."""
        self._output.show(result._repr_html_(), repr(result))

    def _line(self) -> str:
        return f"{self._name} ({self._job_id}): {self._history.status}"

    def _rows(self) -> list[tuple[str, str]]:
        history = self._history
        status: str = history.status
        if history.cause:
            first_line = history.cause.partition("\n")[0]
            status = f"{status}: {headline_of(history.cause) or first_line}"
        return [
            ("job", self._job_id),
            ("status", status),
            ("attempt", self._attempt()),
            ("last checkpoint", self._checkpoint()),
            ("records", self._records()),
            *(("note", notice.text) for notice in history.notices[-NOTES_MAX:]),
        ]

    def _attempt(self) -> str:
        history = self._history
        if not history.attempt:
            return "waits for its slots"
        since = history.restored_checkpoint
        told = "" if since is None else f", from checkpoint {since}"
        restarts = len(history.recoveries)
        if restarts:
            told += f"; {restarts} {'recovery' if restarts == 1 else 'recoveries'}"
        return f"{history.attempt}{told}"

    def _checkpoint(self) -> str:
        history, config = self._history, self._config
        if config.interval_ms is None and not history.completed_count:
            return "none: the job takes no checkpoints"
        last = history.latest_completed
        told = "none yet"
        if last is not None and last.settled is not None:
            at = datetime.fromtimestamp(last.settled.at_ms / 1_000)
            told = f"{last.checkpoint_id} at {at:%H:%M:%S}, in {last.settled.duration_ms:.0f} ms"
        failed = f"; {history.failed_count} failed" if history.failed_count else ""
        memory = "" if config.storage is not None else "; in memory, lost with this process"
        return f"{told}{failed}{memory}"

    def _records(self) -> str:
        metrics = self._history.metrics
        count = sum(metrics[s].records_in for s in self._sources if s in metrics)
        return f"{count:,} from sources in this attempt"
