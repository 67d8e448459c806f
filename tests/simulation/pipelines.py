"""Random pipelines whose output is known beforehand, for simulations.

A record is ``(origin, number, value, total, route)``. Origin and number name it: no two records of
a stream share both, in any order of processing. ``route`` lists the subtasks it went through;
records of one origin that took the same route must never overtake one another.

Sources number their records. Stateless operators keep the name (a map adds its own uid to the
origin, so that two branches of a stream stay apart). A running aggregate emits, for every record,
the count of records of its key so far as the number, and the sum of their values as the total:
in any interleaving, the numbers of each key are 1 to n, once each, and the last total is the sum.

A source's numbers are its event time, and its watermarks say of each stream that no lower number
follows: every operator looks whether that holds. An aggregate, which numbers anew, passes none on.

What a source emits hangs on its splits alone, so a pipeline writes the same with any parallelism.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from weir.common.batch import Batch
from weir.common.typeinfo import Types
from weir.graph.logical import Chaining, Edge, JobGraph, Operator, Partitioning
from weir.ids import AttemptNumber, CheckpointId, OperatorId, StateHandle
from weir.operators.base import Operator as RunningOperator
from weir.operators.base import OperatorContext, Poll, SourceOperator
from weir.operators.keys import FunctionKeySelector
from weir.operators.sinks.pending_commits import PendingCommits
from weir.protocol.lineage import UNKNOWN, Lineage
from weir.state.descriptors import ValueStateDescriptor
from weir.state.ttl import StateTtlConfig
from weir.storage.writer import StoredSnapshotWriter

Row: TypeAlias = tuple[str, int, int, int, tuple[str, ...]]
Name: TypeAlias = tuple[str, int]  # Origin and number.
Reach: TypeAlias = Callable[[str], None]

KEY_COUNT = 5
FORGOTTEN_MS = 2  # The time-to-live of a state of aggregates.
SUBTASKS_MAX = 8  # Of one operator.
UNCHANGED_KEYS = range(1_000, 1_600)  # Of an aggregate's table.
SIDE = "side"
GONE = "the output belongs to a later attempt"


# What a job leaves behind -----------------------------------------------------------------------


@dataclass(slots=True)
class Committed:
    """One committed piece of output."""

    rows: list[Row]
    checkpoints: set[int] = field(default_factory=set)  # By which it was committed.


class InvariantBroken(BaseException):
    """The simulation saw what must never be. No ``Exception``: nothing recovers from it."""


Piece: TypeAlias = tuple[str, int, int, int]  # Operator, subtask, attempt, closed by checkpoint.


class OutputLog:
    """The world outside: what sinks staged and committed, by name. Committing twice is harmless.

    It outlives every attempt and every driver. A job that goes back withdraws what it committed
    since; going on again, it puts that back. Neither attempts that are over nor anybody else may
    change anything once a later attempt has opened the output.
    """

    def __init__(self, reach: Reach, is_durable: Callable[[int], bool]) -> None:
        self.committed: dict[Piece, Committed] = {}
        self.withdrawn: dict[Piece, Committed] = {}
        self.staged: dict[Piece, list[Row]] = {}
        self._opened_by: dict[tuple[str, int], int] = {}  # Attempt, by operator and subtask.
        self._reach = reach
        self._is_durable = is_durable

    def stage(self, piece: Piece, rows: list[Row]) -> None:
        """Store a piece that no reader sees yet."""
        self.staged[piece] = rows

    def commit(self, piece: Piece, checkpoint_id: int, attempt: int) -> None:
        """Show a piece to everybody.

        Raises:
            InvariantBroken: It was never staged, or its checkpoint has no manifest.
            RuntimeError: A later attempt has the output.
        """
        self._reach("commit.before")
        if piece not in self.staged:
            raise InvariantBroken(f"{piece} is committed, but was never staged")
        if not self._is_durable(checkpoint_id):
            raise InvariantBroken(
                f"{piece} is committed for checkpoint {checkpoint_id}, not durable"
            )
        if self._opened_by.get(piece[:2], 0) > attempt and piece not in self.committed:
            raise RuntimeError(f"{GONE}: {piece}")
        committed = self.committed.setdefault(piece, Committed(self.staged[piece]))
        committed.checkpoints.add(checkpoint_id)
        self._reach("commit.after")

    def rewind(
        self, operator: str, attempt: int, is_mine: Callable[[int], bool], lineage: Lineage
    ) -> None:
        """Show what is on this line, of the subtasks that are stood in for, and no more."""
        for subtask in filter(is_mine, range(SUBTASKS_MAX)):
            opened_by = self._opened_by.get((operator, subtask), 0)
            self._opened_by[operator, subtask] = max(opened_by, attempt)
        if not lineage.spans:
            return
        for here, there, stays in (
            (self.committed, self.withdrawn, True),
            (self.withdrawn, self.committed, False),
        ):
            for piece in [p for p in here if p[0] == operator and is_mine(p[1])]:
                on_line = lineage.holds(AttemptNumber(piece[2]), CheckpointId(piece[3]))
                if on_line is not stays:
                    self._reach("rewind.before")
                    there[piece] = here.pop(piece)
                    self._reach("rewind.after")


# The operators ----------------------------------------------------------------------------------


def mixed(name: Name) -> int:
    """A number that depends on a record's name alone."""
    return (len(name[0]) * 7_919 + name[1] * 104_729) % 1_009


def key_of(row: Row) -> int:
    """The key of a record."""
    return mixed((row[0], row[1])) % KEY_COUNT


SELECTOR = FunctionKeySelector(key_of)


class NumberingSource(SourceOperator):
    """Emits ``count`` records of each of its splits, a few at a time, one to four paces apart.

    A split has an origin of its own; the state says of each which number is its next.
    """

    def __init__(self, uid: str, splits: int, count: int, pace_ms: int, reach: Reach) -> None:
        self._uid = uid
        self._pace_ms = pace_ms
        self._splits = splits
        self._count = count
        self._reach = reach
        self._next: dict[int, int] = {}  # By split, of those that are not at their end.
        self._ended: list[int] = []
        self._wakes_at_ms: int | None = None

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._position = ctx.state.list_state("position")
        if ctx.state.restored:
            positions = dict(self._position.get())
        else:
            positions = dict.fromkeys(range(ctx.subtask.index, self._splits, ctx.parallelism), 0)
        self._next = {split: n for split, n in positions.items() if n < self._count}
        self._ended = [split for split in positions if split not in self._next]

    def poll(self, records_max: int) -> Poll:
        if not self._next:
            return Poll.END
        self._reach("source.poll")
        split, first = min(self._next.items(), key=lambda item: item[1])
        origin = f"{self._uid}.{split}"
        numbers = range(first, min(self._count, first + min(records_max, 2)))
        route = (str(self.ctx.subtask),)
        rows = [(origin, n, mixed((origin, n)), 0, route) for n in numbers]
        self._next[split] = numbers.stop
        self.ctx.output.emit(Batch.of_rows(rows))
        if numbers.stop % 5 == 0:
            self.ctx.output.emit_watermark(min(self._next.values()))
        if numbers.stop == self._count:
            del self._next[split]
            self._ended.append(split)
        self._wakes_at_ms = self.ctx.clock.now_ms() + self._pace_ms * (1 + numbers.stop % 4)
        return Poll.MORE

    def next_timer_ms(self) -> int | None:
        return self._wakes_at_ms if self._next else None

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        ended = dict.fromkeys(self._ended, self._count)
        self._position.update([list(item) for item in sorted({**self._next, **ended}.items())])


class Routed(RunningOperator):
    """An operator that notes on each record that it came through here."""

    def __init__(self, uid: str, reach: Reach) -> None:
        self._uid = uid
        self._reach = reach

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._here = str(ctx.subtask)
        self._watermark_ms = 0

    def on_watermark(self, timestamp_ms: int) -> None:
        self._watermark_ms = max(self._watermark_ms, timestamp_ms)
        super().on_watermark(timestamp_ms)

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self._reach("record")
        here = self._here
        if overtaken := [row[:2] for row in batch.rows if row[1] < self._watermark_ms]:
            raise InvariantBroken(
                f"the watermark {self._watermark_ms} came to {here} before {overtaken}"
            )
        self.process([(o, n, v, t, (*route, here)) for o, n, v, t, route in batch.rows])

    def process(self, rows: list[Row]) -> None:
        """Do what the operator does."""
        raise NotImplementedError

    def emit(self, rows: list[Row]) -> None:
        """Send records on."""
        self.ctx.output.emit(Batch.of_rows(rows))


class Renaming(Routed):
    """A map: adds its uid to the origin."""

    def process(self, rows: list[Row]) -> None:
        renamed = [(f"{o}>{self._uid}", n, t, route) for o, n, _, t, route in rows]
        self.emit([(o, n, mixed((o, n)), t, route) for o, n, t, route in renamed])


class Filtering(Routed):
    """Keeps two records of three."""

    def process(self, rows: list[Row]) -> None:
        self.emit([row for row in rows if is_kept((row[0], row[1]))])


class Splitting(Routed):
    """Sends one record of three to the side output."""

    def process(self, rows: list[Row]) -> None:
        self.emit([row for row in rows if is_kept((row[0], row[1]))])
        aside = [  # Another gate, so another route.
            (o, n, v, t, (*route, SIDE)) for o, n, v, t, route in rows if not is_kept((o, n))
        ]
        self.ctx.output.emit_side(SIDE, Batch.of_rows(aside))


class Counting(Routed):
    """A running aggregate per key, and the number of its last record, which is soon forgotten.

    Where checkpoints are incremental the aggregate is kept in a table as well, beside rows that
    never change: its changes alone are written, and restored from files of several checkpoints.
    """

    def on_watermark(self, timestamp_ms: int) -> None:
        self._watermark_ms = max(self._watermark_ms, timestamp_ms)

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        keyed = ctx.state.keyed
        self._keyed = keyed
        self._number = keyed.get_state(ValueStateDescriptor("number", Types.LONG()))
        self._total = keyed.get_state(ValueStateDescriptor("total", Types.LONG()))
        self._at_ms = keyed.get_state(ValueStateDescriptor("at_ms", Types.LONG()))
        forgotten = ValueStateDescriptor("recent", Types.LONG())
        forgotten.enable_time_to_live(StateTtlConfig.new_builder(FORGOTTEN_MS).build())
        self._recent = keyed.get_state(forgotten)
        self._table = _CountTable(ctx) if keyed.tables.is_incremental else None

    def process(self, rows: list[Row]) -> None:
        counted: list[Row] = []
        keys = SELECTOR.keys_of_rows(rows)
        for key, row in zip(keys, rows, strict=True):
            self._keyed.set_current_key(key)
            number = (self._number.value() or 0) + 1
            self._look_back(number)
            total = (self._total.value() or 0) + row[2]
            self._number.update(number)
            self._total.update(total)
            name = (counted_origin(self._uid, key), number)
            counted.append((*name, mixed(name), total, (self._here,)))
        if self._table is not None:
            self._table.add(keys, rows)
            for key in set(keys):
                self._keyed.set_current_key(key)
                self._table.compare(key, self._number.value(), self._total.value())
        self.emit(counted)

    def _look_back(self, number: int) -> None:
        """Compare the state with a time-to-live with one that has none.

        Raises:
            InvariantBroken: It is still there when its time has passed, or gone before.
        """
        now_ms, at_ms = self.ctx.clock.now_ms(), self._at_ms.value()
        lives = at_ms is not None and now_ms - at_ms < FORGOTTEN_MS
        if self._recent.value() != (number - 1 if lives else None):
            raise InvariantBroken(
                f"{self._here} has {self._recent.value()} before {number}, written at {at_ms}, "
                f"at {now_ms}"
            )
        self._recent.update(number)
        self._at_ms.update(now_ms)


class _CountTable:
    """A running aggregate in a table, most of whose rows never change."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._here = str(ctx.subtask)
        self._table = ctx.state.table("counts", pa.int64(), {"number": np.int64, "total": np.int64})
        self._numbers, self._totals = map(self._table.column, ("number", "total"))
        self._unchanged = np.array(list(filter(ctx.state.owns, UNCHANGED_KEYS)), np.int64)
        self._unchanged_slots = self._table.slots_of(self._unchanged)
        if not ctx.state.restored:
            self._numbers.scatter(self._unchanged_slots, self._unchanged)

    def add(self, keys: list[Any], rows: list[Row]) -> None:
        """Add records by their keys.

        Raises:
            InvariantBroken: A row that never changes is not there, or has changed.
        """
        slots = self._table.slots_of(np.array(keys, np.int64))
        self._numbers.add(slots, np.ones(len(rows), np.int64))
        self._totals.add(slots, np.array([row[2] for row in rows], np.int64))
        if (self._numbers.gather(self._unchanged_slots) != self._unchanged).any():
            raise InvariantBroken(f"{self._here} lacks rows of a table that never change")

    def compare(self, key: int, number: int | None, total: int | None) -> None:
        """Compare a row with the state per key.

        Raises:
            InvariantBroken: They differ.
        """
        values, expected = self._table.values_of(key), {"number": number, "total": total}
        if values != expected:
            raise InvariantBroken(f"{self._here} has {values} in a table, and {expected} by key")


class TwoPhaseSink(Routed):
    """Stages the records of an interval at its barrier, commits them when it is covered."""

    def __init__(self, uid: str, reach: Reach, log: OutputLog) -> None:
        super().__init__(uid, reach)
        self._log = log

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._rows: list[Row] = []
        self._intervals: PendingCommits[_Staging] = PendingCommits()
        self._state = ctx.state.list_state("pending", "union")
        lineage = getattr(ctx, "lineage", UNKNOWN)
        self._log.rewind(self._uid, ctx.attempt, self._is_mine, lineage)
        for item in self._state.get():
            piece = tuple(item["piece"])
            if item["job"] == ctx.job_id and self._is_mine(piece[1]):
                self._log.commit(piece, item["in_checkpoint"], ctx.attempt)

    def process(self, rows: list[Row]) -> None:
        self._rows += rows

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        if self._rows:
            piece = (self._uid, self.ctx.subtask.index, self.ctx.attempt, checkpoint_id)
            self._intervals.close(checkpoint_id, _Staging(self._log, piece, self._rows))
            self._rows = []
        self._state.update(
            [
                {
                    "job": self.ctx.job_id,
                    "piece": list(staging.piece),
                    "in_checkpoint": checkpoint_id,
                }
                for _, staging in self._intervals.waiting()
            ]
        )

    def snapshot(self, checkpoint_id: CheckpointId) -> "list[_Staging]":
        # All that wait: the writing for an earlier checkpoint may have been cancelled.
        return [staging for _, staging in self._intervals.waiting()]

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        for _, staging in self._intervals.complete(checkpoint_id):
            self._log.commit(staging.piece, checkpoint_id, self.ctx.attempt)

    def _is_mine(self, subtask: int) -> bool:
        """Whether this subtask looks after the output of that one, perhaps of a wider attempt."""
        return subtask % self.ctx.parallelism == self.ctx.subtask.index


class _Staging:
    """Output that is staged on the snapshot thread."""

    def __init__(self, log: OutputLog, piece: Piece, rows: list[Row]) -> None:
        self.piece = piece
        self._log = log
        self._rows = rows

    def write(self, writer: StoredSnapshotWriter) -> list[StateHandle]:
        self._log.stage(self.piece, self._rows)
        return []

    def release(self) -> None:
        """There is nothing to let go."""


def is_kept(name: Name) -> bool:
    """Whether a record stays in the main stream."""
    return mixed(name) % 3 != 0


def counted_origin(uid: str, key: int) -> str:
    """The origin of what an aggregate makes for a key."""
    return f"{uid}:{key}"


# The random graph -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stream:
    """An output of an operator while a graph grows, with the names of all its records."""

    uid: OperatorId
    parallelism: int
    names: set[Name]
    side: str | None = None
    is_used: bool = False


@dataclass(slots=True)
class Pipeline:
    """A graph and what it must write."""

    graph: JobGraph
    expected: dict[str, set[Name]]  # Per sink: the names of its records.
    totals: dict[Name, int]  # Of the last record of every key of every aggregate, where known.

    def rescaled(self, rng: random.Random) -> JobGraph:
        """The same graph with another parallelism here and there.

        What a forward edge joins has one parallelism.
        """
        wanted: dict[OperatorId, int] = {}
        for operator in self.graph.operators:  # In topological order.
            ahead = [
                wanted[edge.source]
                for edge in self.graph.edges
                if edge.target == operator.uid and edge.partitioning is Partitioning.FORWARD
            ]
            wanted[operator.uid] = ahead[0] if ahead else rng.randint(1, 3)
        joined = [e for e in self.graph.edges if e.partitioning is Partitioning.FORWARD]
        if any(wanted[e.source] != wanted[e.target] for e in joined):
            return self.graph  # Something is joined with two that differ now.
        operators = (replace(o, parallelism=wanted[o.uid]) for o in self.graph.operators)
        return replace(self.graph, operators=tuple(operators))

    def writing_to(self, log: OutputLog, reach: Reach) -> JobGraph:
        """The same graph with an output of its own."""
        return replace(
            self.graph,
            operators=tuple(
                replace(o, factory=partial(TwoPhaseSink, o.uid, reach, log))
                if o.uid in self.expected
                else o
                for o in self.graph.operators
            ),
        )


class _Builder:
    def __init__(self, rng: random.Random, log: OutputLog, reach: Reach, pace_ms: int) -> None:
        self.random = rng
        self.pace_ms = pace_ms
        self.log = log
        self.reach = reach
        self.operators: list[Operator] = []
        self.edges: list[Edge] = []
        self.streams: list[_Stream] = []
        self.expected: dict[str, set[Name]] = {}
        self.totals: dict[Name, int] = {}

    def source(self) -> None:
        uid = f"s{len(self.operators)}"
        parallelism, count = self.random.randint(1, 3), self.random.randint(10, 30)
        factory = partial(NumberingSource, uid, parallelism, count, self.pace_ms, self.reach)
        self.add(uid, parallelism, factory, is_source=True)
        names = {(f"{uid}.{i}", n) for i in range(parallelism) for n in range(count)}
        self.streams.append(_Stream(OperatorId(uid), parallelism, names))

    def stage(self) -> None:
        kind = self.random.choice([Renaming, Filtering, Splitting, Counting, Counting])
        inputs = self.pick(self.random.choice([1, 1, 1, 2]))
        uid = f"{kind.__name__[0].lower()}{len(self.operators)}"
        parallelism = self.connect(uid, inputs, keyed=kind is Counting)
        self.add(uid, parallelism, partial(kind, uid, self.reach), keyed=kind is Counting)
        names = {name for stream in inputs for name in stream.names}
        operator = OperatorId(uid)
        if kind is Counting:
            made = self.counted(uid, names)
            self.streams.append(_Stream(operator, parallelism, made))
        elif kind is Renaming:
            made = {(f"{origin}>{uid}", number) for origin, number in names}
            self.streams.append(_Stream(operator, parallelism, made))
        else:
            kept = set(filter(is_kept, names))
            self.streams.append(_Stream(operator, parallelism, kept))
            if kind is Splitting:
                aside = names - kept
                self.streams.append(_Stream(operator, parallelism, aside, SIDE))

    def counted(self, uid: str, names: Iterable[Name]) -> set[Name]:
        values: dict[int, list[int]] = defaultdict(list)
        for name in names:
            values[key_of((*name, 0, 0, ()))].append(mixed(name))
        made: set[Name] = set()
        for key, of_key in values.items():
            origin = counted_origin(uid, key)
            made |= {(origin, number) for number in range(1, len(of_key) + 1)}
            self.totals[origin, len(of_key)] = sum(of_key)
        return made

    def pick(self, count: int) -> list[_Stream]:
        """Streams to read, which share no record; unread ones first."""
        candidates = self.streams[:]
        self.random.shuffle(candidates)
        candidates.sort(key=lambda stream: stream.is_used)
        chosen: list[_Stream] = []
        for stream in candidates:
            if len(chosen) < count and all(stream.names.isdisjoint(s.names) for s in chosen):
                chosen.append(stream)
                stream.is_used = True
        return chosen

    def sinks(self) -> None:
        while unread := [stream for stream in self.streams if not stream.is_used]:
            inputs = self.pick(min(len(unread), self.random.choice([1, 2])))
            uid = f"sink{len(self.operators)}"
            parallelism = self.connect(uid, inputs, keyed=False)
            factory = partial(TwoPhaseSink, uid, self.reach, self.log)
            self.add(uid, parallelism, factory, is_sink=True)
            self.expected[uid] = {name for stream in inputs for name in stream.names}

    def connect(self, uid: str, inputs: list[_Stream], *, keyed: bool) -> int:
        parallelism = self.random.choice([inputs[0].parallelism, self.random.randint(1, 3)])
        for stream in inputs:
            self.edges.append(
                Edge(
                    stream.uid,
                    OperatorId(uid),
                    Partitioning.HASH if keyed else self.spread(stream.parallelism, parallelism),
                    side_tag=stream.side,
                    selector=SELECTOR,
                )
            )
        return parallelism

    def spread(self, senders: int, receivers: int) -> Partitioning:
        ways = [Partitioning.REBALANCE, Partitioning.SHUFFLE, Partitioning.HASH]
        ways += [Partitioning.RESCALE, Partitioning.GLOBAL]
        if senders == receivers:
            ways += [Partitioning.FORWARD] * 5
        return self.random.choice(ways)

    def add(self, uid: str, parallelism: int, factory: Callable[[], Any], **kinds: Any) -> None:
        chaining = self.random.choice([*Chaining, Chaining.ALWAYS])
        self.operators.append(
            Operator(OperatorId(uid), uid, parallelism, factory, chaining=chaining, **kinds)
        )


def random_pipeline(rng: random.Random, log: OutputLog, reach: Reach, pace_ms: int = 1) -> Pipeline:
    """A graph of one to three sources, up to four stages, and a sink for each stream that is left.

    ``pace_ms`` is how long a source rests at least.
    """
    builder = _Builder(rng, log, reach, pace_ms)
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        builder.source()
    for _ in range(rng.randint(1, 4)):
        builder.stage()
    builder.sinks()
    graph = JobGraph("simulated", tuple(builder.operators), tuple(builder.edges))
    return Pipeline(graph, builder.expected, builder.totals)
