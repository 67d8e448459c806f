"""Committed output that reaches the driver: printed lines and collected rows.

Subtasks deliver rows under the id of a checkpoint, and an attempt that is restored delivers again
what its checkpoint holds: the driver takes each id of a subtask once. Where an attempt is restored
from a checkpoint before the newest, since that is damaged, the records after it come again, under
new ids. Then the driver takes back the rows that it had collected of them, as file sinks withdraw
their files. A printed line stays printed, and the user is told how many come again. Of rows that a
reader has taken while the job went on, none can be taken back: the job is ended, with an error.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any, TypeAlias

from weir.common.row_codec import decode_rows
from weir.errors import JobFailedError, ProtocolError, SchemaError
from weir.graph.logical import JobGraph
from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.jobmaster.restore_choice import RestoreChoice
from weir.operators.sinks.collect_sink import AT_ONCE, is_print

# Checkpoints whose printed lines or read rows are counted; far more than are retained.
PRINTED_MAX = 10_000

ComesAgain: TypeAlias = Callable[[CheckpointId], bool]


class CollectedRows:
    """Rows in the order of their delivery; those of a checkpoint can be taken back."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._runs: list[tuple[CheckpointId, int]] = []  # Rows in a row of one checkpoint.

    def add(self, checkpoint_id: CheckpointId, rows: Sequence[Any]) -> None:
        """Keep rows that were delivered under the id of a checkpoint."""
        count = len(rows)
        if self._runs and self._runs[-1][0] == checkpoint_id:
            count += self._runs.pop()[1]
        self._runs.append((checkpoint_id, count))
        self.rows += rows

    def take_back(self, comes_again: ComesAgain) -> None:
        """Drop the rows of the checkpoints that ``comes_again`` names."""
        before, runs = self.rows[:], self._runs
        self.rows.clear()
        self._runs = []
        at = 0
        for checkpoint_id, count in runs:
            if not comes_again(checkpoint_id):
                self.add(checkpoint_id, before[at : at + count])
            at += count


class RowStream:
    """Rows on their way to a reader in another thread, in the order of their delivery."""

    def __init__(self) -> None:
        self.is_closed = False  # The reader wants no more.
        self._changed = Condition()
        self._waiting: deque[tuple[CheckpointId, Any]] = deque()
        self._read: Counter[CheckpointId] = Counter()  # Rows of the newest checkpoints.
        self._has_ended = False
        self._error: BaseException | None = None

    @property
    def rows(self) -> list[Any]:
        """Always empty: the reader gets the rows, not the job's result."""
        return []

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, so that no row follows."""
        return self._has_ended

    @property
    def waiting_count(self) -> int:
        """The number of rows that wait for the reader."""
        return len(self._waiting)

    @property
    def is_enough(self) -> bool:
        """Whether the job may be cancelled: its reader is gone, or has to be told of an error."""
        return self.is_closed or self._error is not None

    def add(self, checkpoint_id: CheckpointId, rows: Sequence[Any]) -> None:
        """Hand rows that were delivered under the id of a checkpoint to the reader."""
        with self._changed:
            if not self.is_enough:
                self._waiting.extend((checkpoint_id, row) for row in rows)
                self._changed.notify()

    def take_back(self, comes_again: ComesAgain) -> None:
        """Drop the rows that come again; where some of them were read, end with an error."""
        with self._changed:
            self._waiting = deque(item for item in self._waiting if not comes_again(item[0]))
            again = {number: self._read[number] for number in self._read if comes_again(number)}
            if again and self._error is None:
                self._error = JobFailedError(_read_again(sum(again.values()), AT_ONCE in again))

    def end(self, error: BaseException | None = None) -> None:
        """The job has ended, with an error or without; no row follows."""
        with self._changed:
            self._has_ended = True
            self._error = self._error or error
            self._changed.notify()

    def take(self) -> Any:
        """The next row; waits for it.

        Raises:
            StopIteration: There is none any more.
            BaseException: The error that the job ended with, once all rows before it were taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended or self.is_closed)
            if self.is_closed:
                raise StopIteration
            if self._waiting:
                checkpoint_id, row = self._waiting.popleft()
                self._read[checkpoint_id] += 1
                if len(self._read) > PRINTED_MAX:
                    del self._read[min(self._read)]
                return row
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Drop the rows that were not taken, and all that would follow."""
        with self._changed:
            self.is_closed = True
            self._waiting.clear()
            self._changed.notify()


def printed_again(lines: int, restored: CheckpointId | None) -> str:
    """The remark on printed lines that come again behind the ``restored`` checkpoint."""
    start = "its beginning" if restored is None else f"checkpoint {restored}"
    counted = "1 line that was" if lines == 1 else f"{lines:,} lines that were"
    return f"the job goes on from {start}, so {counted} printed after it may be printed again"


def _read_again(rows: int, at_once: bool) -> str:
    counted = (
        "1 record that was read already comes"
        if rows == 1
        else (f"{rows:,} records that were read already come")
    )
    why = (
        "without checkpoints a restarted job begins anew; enable checkpointing, and each record is "
        "read once"
        if at_once
        else "the checkpoint that covers them is damaged; read the stream again from its beginning"
    )
    return f"the job was ended when it was restarted, because {counted} again: {why}"


class Deliveries:
    """The driver's end of print and collect sinks: prints lines, keeps collected rows."""

    def __init__(
        self,
        graph: JobGraph,
        write: Callable[[str], None],
        *,
        pickles: bool = False,
        rows: RowStream | None = None,
    ) -> None:
        """Prepare; ``write`` receives every printed line.

        ``pickles``: whether the job allows records that are pickled, which run code in the driver.
        ``rows`` receives the collected rows; None keeps them for the job's result.
        """
        self._pickles = pickles
        self._printing = {op.uid for op in graph.operators if is_print(op.factory)}
        self._write = write
        self._collected: CollectedRows | RowStream = CollectedRows() if rows is None else rows
        self._printed: Counter[CheckpointId] = Counter()  # Lines of the newest checkpoints.

    @property
    def collected(self) -> list[Any]:
        """The collected rows, in the order of their delivery."""
        return self._collected.rows

    def collect(self, subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes) -> None:
        """Print or keep one delivery.

        Raises:
            ProtocolError: The payload is no delivery of this job.
        """
        try:
            rows = decode_rows(payload, pickles=self._pickles)
        except (ValueError, SchemaError) as error:
            raise ProtocolError(f"{subtask} delivered what cannot be read: {error}") from error
        if subtask.operator not in self._printing:
            self._collected.add(checkpoint_id, rows)
            return
        for line in rows:
            self._write(str(line))
        self._printed[checkpoint_id] += len(rows)
        if len(self._printed) > PRINTED_MAX:
            del self._printed[min(self._printed)]

    def take_back(self, comes_again: ComesAgain) -> int:
        """Drop the rows that come again; returns how many lines do, which stay printed."""
        self._collected.take_back(comes_again)
        return sum(self._printed.pop(number) for number in list(filter(comes_again, self._printed)))


class DeliveredOnce:
    """Passes each piece of committed output on once, although attempts commit it again."""

    def __init__(
        self,
        collect: Callable[[SubtaskId, CheckpointId, bytes], None],
        take_back: Callable[[ComesAgain], int],
    ) -> None:
        self._collect = collect
        self._take_back = take_back
        self._up_to: dict[SubtaskId, CheckpointId] = {}
        self._shown = AT_ONCE  # An earlier driver showed what waited up to this checkpoint.
        # The checkpoint that this driver's first attempt restored; None: there was no attempt.
        self._first: tuple[AttemptNumber, CheckpointId] | None = None

    def deliver(self, subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes) -> None:
        """A subtask committed this for a checkpoint; 0: the job takes none."""
        if checkpoint_id != AT_ONCE:
            if checkpoint_id <= max(self._shown, self._up_to.get(subtask, AT_ONCE)):
                return  # Delivered by an earlier attempt already.
            self._up_to[subtask] = checkpoint_id
        self._collect(subtask, checkpoint_id, payload)

    def restored(self, choice: RestoreChoice) -> int:
        """An attempt is restored: take back what it delivers again; returns the printed lines."""
        manifest = choice.manifest
        here = (
            (AttemptNumber(0), AT_ONCE)
            if manifest is None
            else (manifest.attempt, manifest.checkpoint_id)
        )
        if self._first is None:
            self._first = here
            if choice.is_shown:
                self._shown = here[1]
            return 0
        # What was delivered at once comes again from where this driver began. From a later
        # checkpoint a part of it does, which no id tells: that part is shown twice.
        repeats = here == self._first and not choice.completes_stop

        def comes_again(checkpoint_id: CheckpointId) -> bool:
            return repeats if checkpoint_id == AT_ONCE else checkpoint_id not in choice.lineage

        return self._take_back(comes_again)
