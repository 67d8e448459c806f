"""The asynchronous part: what is acknowledged, declined, or neither, and what stays behind."""

from collections.abc import Sequence
from pathlib import Path

from tests.builders import subtask
from tests.claims import claim, unclaimed
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.subtask_harness import JOB, Reports, SnapshotQueue
from weir.config import CheckpointConfig
from weir.errors import StorageError
from weir.ids import AttemptNumber, CheckpointId, StateHandle
from weir.protocol.messages import GateAlignment, SnapshotMetrics
from weir.storage.layout import SAVEPOINT_MANIFEST, in_job
from weir.storage.local_copies import LocalCopies
from weir.storage.memory import MemoryStore
from weir.storage.writer import StoredSnapshotWriter, writer_factory
from weir.worker.ports import Call
from weir.worker.snapshotter import OperatorFreeze, Snapshotter

ONE = CheckpointId(1)
HEAD = subtask("head-0")
GATE = GateAlignment(0, ("up-0",), (0.0,), (1.0,), (10,))


class Part:
    """State of one byte per name; may fail, and may do something while it is written."""

    def __init__(
        self, name: str, *, fails: bool = False, clock: ManualClock | None = None, takes_ms: int = 0
    ) -> None:
        self.name = name
        self.fails = fails
        self.clock = clock
        self.takes_ms = takes_ms
        self.released = 0

    def write(self, writer: StoredSnapshotWriter) -> Sequence[StateHandle]:
        if self.fails:
            raise StorageError("disk full")
        if self.clock is not None:
            self.clock.ms += self.takes_ms
        return [writer.put("operator", self.name, b"x", mode="split")]

    def release(self) -> None:
        self.released += 1


class BrokenStore(MemoryStore):
    """Cannot delete."""

    def delete(self, path: str) -> None:
        raise StorageError("away")


class Harness:
    def __init__(self, store: MemoryStore | None = None, copies: LocalCopies | None = None) -> None:
        self.store = store or MemoryStore()
        self.savepoints = {"/s/one": MemoryStore()}
        self.thread = SnapshotQueue()
        self.reports = Reports()
        self.clock = ManualClock()
        attempt = AttemptNumber(1)
        claim(self.store, JOB, attempt)
        config = CheckpointConfig(inline_max_bytes=0)  # Everything becomes a file.
        self.snapshotter = Snapshotter(
            attempt,
            writer_factory(
                self.store,
                JOB,
                attempt,
                config,
                durable=True,
                open_store=lambda uri: self.savepoints[uri or ""],
                copies=copies,
            ),
            self.thread,
            inbox=self.thread,
            reporter=self.reports,
            clock=self.clock,
        )

    def files(self) -> list[str]:
        """The state files in the job's storage."""
        return unclaimed(self.store)

    def write(self, *parts: Part, tail: Sequence[Part] = ()) -> None:
        frozen = [OperatorFreeze(HEAD, parts), OperatorFreeze(subtask("tail-0"), tail)]
        self.snapshotter.write(HEAD, ONE, frozen, SnapshotMetrics(gates=(GATE,)), sync_ns=2_000_000)

    def open(self, *parts: Part) -> None:
        frozen = [OperatorFreeze(HEAD, parts), OperatorFreeze(subtask("tail-0"), ())]
        self.snapshotter.write(HEAD, ONE, frozen, SnapshotMetrics(), sync_ns=0, is_open=True)


def test_one_acknowledgement_carries_every_operator_and_the_alignment_is_the_heads() -> None:
    harness = Harness()
    harness.write(Part("a"), Part("b"), tail=[Part("c")])
    assert harness.reports == []
    harness.thread.run()
    (ack,) = harness.reports
    head, tail = ack.operators
    assert [handle.name for handle in head.handles] == ["a", "b"]
    assert (head.metrics.state_size, tail.metrics.state_size) == (2, 1)
    assert (head.metrics.gates, tail.metrics.gates) == ((GATE,), ())
    assert head.metrics.sync_ms == 2
    assert len(harness.files()) == 3


class SharingPart(Part):
    """State of which all but a byte lies in a file of an earlier checkpoint."""

    OLD = StateHandle("keyed", "state.x", 100, "0", path="shared/1-0/old", mode="whole")

    def write(self, writer: StoredSnapshotWriter) -> Sequence[StateHandle]:
        return [self.OLD, *super().write(writer)]


def test_copies_of_files_of_earlier_checkpoints_are_kept_while_one_names_them(
    tmp_path: Path,
) -> None:
    shared, other = (tmp_path / f"{name}-100" for name in (SharingPart.OLD.checksum, "1"))
    for copy in (shared, other):
        copy.touch()
    copies = LocalCopies(tmp_path, 1 << 20)
    harness = Harness(copies=copies)
    harness.write(SharingPart("a"))
    harness.thread.run()
    assert len(list(tmp_path.iterdir())) == 3
    copies.completed(ONE)
    assert shared.exists()
    assert not other.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_files_of_earlier_checkpoints_are_not_deleted_with_a_snapshot() -> None:
    harness = Harness()
    old = in_job(JOB, SharingPart.OLD.path or "")
    harness.store.put(old, b"x" * 100)
    harness.open(SharingPart("a"))
    harness.thread.run()
    assert len(harness.files()) == 2
    harness.snapshotter.cancel(HEAD, ONE)
    harness.thread.run()
    assert harness.files() == [old]


def test_bytes_of_earlier_checkpoints_are_not_written() -> None:
    harness = Harness()
    harness.write(SharingPart("a"), tail=[Part("b")])
    harness.thread.run()
    (ack,) = harness.reports
    sizes = [(one.metrics.state_size, one.metrics.written_size) for one in ack.operators]
    assert sizes == [(101, 1), (1, 1)]


def test_an_acknowledgement_tells_for_how_long_each_operators_own_part_was_written() -> None:
    """The snapshot waits for its turn as well, and for the parts before it."""
    harness = Harness()
    harness.write(
        Part("a", clock=harness.clock, takes_ms=20),
        Part("b", clock=harness.clock, takes_ms=30),
        tail=[Part("c", clock=harness.clock, takes_ms=700)],
    )
    harness.clock.ms += 5_000
    harness.thread.run()
    (ack,) = harness.reports
    assert ack.writing_ms == (50.0, 700.0)
    assert ack.operators[0].metrics.async_ms == 5_750.0


def test_without_state_it_is_acknowledged_at_once() -> None:
    harness = Harness()
    settled: list[Call] = []
    harness.thread.put = settled.append  # type: ignore[method-assign, assignment]
    harness.write()
    assert not harness.thread.waiting
    assert not settled
    assert harness.reports.acknowledged == [1]
    harness.snapshotter.cancel(HEAD, ONE)  # Too late.
    assert len(harness.reports) == 1


def test_without_state_an_open_snapshot_is_acknowledged_when_it_is_complete() -> None:
    for is_cancelled in (False, True):
        harness = Harness()
        harness.open()
        if is_cancelled:
            harness.snapshotter.cancel(HEAD, ONE)
        assert harness.reports == []
        harness.snapshotter.complete(HEAD, ONE, SnapshotMetrics())
        assert harness.reports.acknowledged == ([] if is_cancelled else [1])


def test_without_state_a_savepoint_declines_a_directory_that_holds_one_too() -> None:
    harness = Harness()
    harness.savepoints["/s/one"].put(SAVEPOINT_MANIFEST, b"")
    frozen = [OperatorFreeze(HEAD, [])]
    harness.snapshotter.write(HEAD, ONE, frozen, SnapshotMetrics(), 0, "/s/one")
    assert harness.reports == []  # The loop does not look itself.
    harness.thread.run()
    assert harness.reports.declined == [(1, "checkpoint_async_exception")]
    assert "holds a savepoint already" in harness.reports[0].cause


def test_a_savepoint_goes_where_its_barrier_says() -> None:
    harness = Harness()
    frozen = [OperatorFreeze(HEAD, [Part("a")])]
    harness.snapshotter.write(HEAD, ONE, frozen, SnapshotMetrics(), 0, "/s/one")
    harness.thread.run()
    assert harness.files() == []
    assert harness.savepoints["/s/one"].list() == ["1-1/head-0-a"]


def test_a_write_that_fails_declines_releases_and_leaves_nothing() -> None:
    harness = Harness()
    parts = [Part("a"), Part("b", fails=True)]
    harness.write(*parts)
    harness.thread.run()
    assert harness.reports.declined == [(1, "checkpoint_async_exception")]
    assert "disk full" in harness.reports[0].cause
    assert [part.released for part in parts] == [1, 1]
    assert harness.files() == []


def test_a_storage_that_cannot_even_delete_still_lets_the_subtask_decline() -> None:
    harness = Harness(BrokenStore())
    harness.write(Part("a"), Part("b", fails=True))
    harness.thread.run()
    assert harness.reports.declined == [(1, "checkpoint_async_exception")]


def test_cancelled_before_it_is_written_it_is_neither_written_nor_reported() -> None:
    harness = Harness()
    part = Part("a")
    harness.write(part)
    harness.snapshotter.cancel(HEAD, ONE)
    harness.thread.run()
    assert harness.reports == []
    assert harness.files() == []
    assert part.released == 1


def test_cancelled_after_it_was_written_it_is_deleted_on_the_snapshot_thread() -> None:
    harness = Harness()
    harness.write(Part("a"))
    write = harness.thread.waiting.popleft()
    handed_back = harness.thread.put
    settled: list[object] = []
    harness.thread.put = settled.append  # type: ignore[method-assign, assignment]
    write()
    harness.snapshotter.cancel(HEAD, ONE)
    for item in settled:
        handed_back(item)  # type: ignore[arg-type]
    assert len(harness.files()) == 1  # The loop itself deletes nothing.
    harness.thread.run()
    assert harness.files() == []
    assert harness.reports == []


def test_cancelling_what_is_not_being_written_does_nothing() -> None:
    harness = Harness()
    harness.snapshotter.cancel(HEAD, ONE)
    harness.write(Part("a"))
    harness.thread.run()
    assert harness.reports.acknowledged == [1]


# Open snapshots, to which records under way are added.


def test_an_open_snapshot_is_acknowledged_when_it_is_complete_and_written() -> None:
    harness = Harness()
    harness.open(Part("a"))
    harness.snapshotter.add(HEAD, ONE, Part("in/up>head.0/0/0"), 10)
    assert harness.snapshotter.unwritten_bytes(HEAD, ONE) == 10
    harness.thread.run()
    assert harness.snapshotter.unwritten_bytes(HEAD, ONE) == 0
    harness.snapshotter.add(HEAD, ONE, Part("out/tail>down.0/0/1"), 10)
    harness.snapshotter.complete(HEAD, ONE, SnapshotMetrics(gates=(GATE,), unaligned=True))
    assert harness.reports.acknowledged == []
    harness.thread.run()
    (acknowledged,) = harness.reports
    head, tail = acknowledged.operators
    assert [handle.name for handle in head.handles] == [
        "a", "in/up>head.0/0/0", "out/tail>down.0/0/1"
    ]  # fmt: skip
    assert (head.metrics.state_size, head.metrics.bytes_persisted_in_flight) == (1, 2)
    assert head.metrics.bytes_persisted_at_outputs == 1
    assert (head.metrics.unaligned, head.metrics.gates) == (True, (GATE,))
    assert (tail.metrics.bytes_persisted_in_flight, tail.metrics.gates) == (0, ())
    assert tail.metrics.bytes_persisted_at_outputs == 0


def test_an_open_snapshot_without_anything_is_acknowledged_at_once() -> None:
    harness = Harness()
    harness.open()
    assert harness.reports == []
    harness.snapshotter.complete(HEAD, ONE, SnapshotMetrics())
    assert harness.reports.acknowledged == [1]
    assert not harness.thread.waiting


def test_records_that_cannot_be_written_decline_the_checkpoint_at_once() -> None:
    harness = Harness()
    harness.open(Part("a"))
    harness.snapshotter.add(HEAD, ONE, Part("in/up>head.0/0/0", fails=True), 10)
    harness.thread.run()
    assert harness.reports.declined == [(1, "checkpoint_async_exception")]
    harness.snapshotter.add(HEAD, ONE, Part("more"), 10)
    assert not harness.thread.waiting
    harness.snapshotter.complete(HEAD, ONE, SnapshotMetrics())
    harness.thread.run()
    assert harness.reports.acknowledged == []
    assert len(harness.reports) == 1
    assert harness.files() == []


def test_a_second_failure_declines_nothing_more() -> None:
    harness = Harness()
    harness.open(Part("a", fails=True))
    harness.snapshotter.add(HEAD, ONE, Part("in/up>head.0/0/0", fails=True), 10)
    harness.thread.run()
    assert harness.reports.declined == [(1, "checkpoint_async_exception")]


def test_an_open_snapshot_that_is_cancelled_leaves_no_file_and_releases_its_state() -> None:
    harness, part = Harness(), Part("a")
    harness.open(part)
    harness.snapshotter.add(HEAD, ONE, Part("in/up>head.0/0/0"), 10)
    harness.thread.run()
    assert harness.files() != []
    assert part.released == 1  # It is written.
    harness.snapshotter.cancel(HEAD, ONE)
    harness.thread.run()
    assert (harness.reports, part.released) == ([], 1)
    assert harness.files() == []
    harness.snapshotter.complete(HEAD, ONE, SnapshotMetrics())
    assert harness.reports == []


def test_an_open_snapshot_that_fails_is_declined_once() -> None:
    harness = Harness()
    harness.open(Part("a"))
    harness.thread.run()
    for _ in range(2):
        harness.snapshotter.fail(HEAD, ONE, StorageError("too slow"))
    harness.thread.run()
    assert harness.reports.declined == [(1, "checkpoint_async_exception")]
    assert harness.files() == []
