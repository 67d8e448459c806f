"""Random pipelines whose output is known beforehand, for simulations.

A record is ``(origin, number, value, total, route)``. Origin and number name it: no two records of
a stream share both, whatever order records are processed in. ``route`` lists the subtasks it went
through; records of one origin that took the same route must never overtake one another.

Sources number their records. Stateless operators keep the name (a map adds its own uid to the
origin, so that two branches of a stream stay apart). A running aggregate emits, for every record,
the count of records of its key so far as the number, and the sum of their values as the total:
whatever the interleaving, the numbers of each key are 1 to n, once each, and the last total is the
sum.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from weir.common.batch import Batch
from weir.common.typeinfo import Types
from weir.graph.logical import Chaining, Edge, JobGraph, Operator, Partitioning
from weir.ids import CheckpointId, OperatorId, StateHandle
from weir.operators.base import Operator as RunningOperator
from weir.operators.base import OperatorContext, Poll, SourceOperator
from weir.operators.intervals import Intervals
from weir.operators.keys import FunctionKeySelector
from weir.state.descriptors import ValueStateDescriptor
from weir.storage.writer import StoredSnapshotWriter

Row: TypeAlias = tuple[str, int, int, int, tuple[str, ...]]
Name: TypeAlias = tuple[str, int]  # Origin and number.
Reach: TypeAlias = Callable[[str], None]

KEY_COUNT = 5
SIDE = "side"


# What a job leaves behind -----------------------------------------------------------------------


@dataclass(slots=True)
class Committed:
    """One committed piece of output."""

    rows: list[Row]
    checkpoints: set[int] = field(default_factory=set)  # By which it was committed.


class InvariantBroken(BaseException):
    """The simulation saw what must never be. No ``Exception``: nothing recovers from it."""


class OutputLog:
    """The world outside: what sinks staged and committed, by name. Committing twice is harmless.

    It outlives every attempt and every driver.
    """

    def __init__(self, reach: Reach, is_durable: Callable[[int], bool]) -> None:
        self.committed: dict[tuple[str, int, int, int], Committed] = {}
        self._staged: dict[tuple[str, int, int, int], list[Row]] = {}
        self._reach = reach
        self._is_durable = is_durable

    def stage(self, name: tuple[str, int, int, int], rows: list[Row]) -> None:
        """Store a piece that nobody sees yet."""
        self._staged[name] = rows

    def commit(self, name: tuple[str, int, int, int], checkpoint_id: int) -> None:
        """Show a piece to everybody.

        Raises:
            InvariantBroken: It was never staged, or its checkpoint has no manifest.
        """
        self._reach("commit.before")
        if name not in self._staged:
            raise InvariantBroken(f"{name} is committed, but was never staged")
        if not self._is_durable(checkpoint_id):
            raise InvariantBroken(
                f"{name} is committed for checkpoint {checkpoint_id}, not durable"
            )
        piece = self.committed.setdefault(name, Committed(self._staged[name]))
        piece.checkpoints.add(checkpoint_id)
        self._reach("commit.after")


# The operators ----------------------------------------------------------------------------------


def mixed(name: Name) -> int:
    """A number that depends on a record's name alone."""
    return (len(name[0]) * 7_919 + name[1] * 104_729) % 1_009


def key_of(row: Row) -> int:
    """The key of a record."""
    return mixed((row[0], row[1])) % KEY_COUNT


SELECTOR = FunctionKeySelector(key_of)


class NumberingSource(SourceOperator):
    """Emits ``count`` records, a few at a time; its state is the number of the next."""

    def __init__(self, uid: str, count: int, reach: Reach) -> None:
        self._uid = uid
        self._count = count
        self._reach = reach
        self._wakes_at_ms: int | None = None

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._origin = f"{self._uid}.{ctx.subtask.index}"
        self._position = ctx.state.list_state("position")
        restored = self._position.get()
        self._next: int = restored[0] if restored else 0

    def poll(self, records_max: int) -> Poll:
        if self._next >= self._count:
            return Poll.END
        self._reach("source.poll")
        numbers = range(self._next, min(self._count, self._next + min(records_max, 2)))
        route = (str(self.ctx.subtask),)
        rows = [(self._origin, n, mixed((self._origin, n)), 0, route) for n in numbers]
        self._next = numbers.stop
        self.ctx.output.emit(Batch.of_rows(rows))
        if self._next % 5 == 0:
            self.ctx.output.emit_watermark(self._next)
        if self._next < self._count:
            self._wakes_at_ms = self.ctx.clock.now_ms() + 1 + self._next % 4
        return Poll.MORE

    def next_timer_ms(self) -> int | None:
        return self._wakes_at_ms if self._next < self._count else None

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        self._position.update([self._next])


class Routed(RunningOperator):
    """An operator that notes on each record that it came through here."""

    def __init__(self, uid: str, reach: Reach) -> None:
        self._uid = uid
        self._reach = reach

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._here = str(ctx.subtask)

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self._reach("record")
        here = self._here
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
    """A running aggregate per key."""

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        keyed = ctx.state.keyed
        self._keyed = keyed
        self._number = keyed.get_state(ValueStateDescriptor("number", Types.LONG()))
        self._total = keyed.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process(self, rows: list[Row]) -> None:
        counted: list[Row] = []
        for key, row in zip(SELECTOR.keys_of_rows(rows), rows, strict=True):
            self._keyed.set_current_key(key)
            number = (self._number.value() or 0) + 1
            total = (self._total.value() or 0) + row[2]
            self._number.update(number)
            self._total.update(total)
            name = (counted_origin(self._uid, key), number)
            counted.append((*name, mixed(name), total, (self._here,)))
        self.emit(counted)


class TwoPhaseSink(Routed):
    """Stages the records of an interval at its barrier, commits them when it is covered."""

    def __init__(self, uid: str, reach: Reach, log: OutputLog) -> None:
        super().__init__(uid, reach)
        self._log = log

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._rows: list[Row] = []
        self._intervals: Intervals[_Staging] = Intervals()
        self._state = ctx.state.list_state("pending")
        for item in self._state.get():
            self._log.commit(tuple(item["name"]), item["in_checkpoint"])

    def process(self, rows: list[Row]) -> None:
        self._rows += rows

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        if self._rows:
            name = (self._uid, self.ctx.subtask.index, self.ctx.attempt, checkpoint_id)
            self._intervals.close(checkpoint_id, _Staging(self._log, name, self._rows))
            self._rows = []
        self._state.update(
            [
                {"name": list(staging.name), "in_checkpoint": checkpoint_id}
                for _, staging in self._intervals.waiting()
            ]
        )

    def snapshot(self, checkpoint_id: CheckpointId) -> "list[_Staging]":
        # All that wait: the writing for an earlier checkpoint may have been cancelled.
        return [staging for _, staging in self._intervals.waiting()]

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        for _, staging in self._intervals.complete(checkpoint_id):
            self._log.commit(staging.name, checkpoint_id)


class _Staging:
    """Output that is staged on the snapshot thread."""

    def __init__(self, log: OutputLog, name: tuple[str, int, int, int], rows: list[Row]) -> None:
        self.name = name
        self._log = log
        self._rows = rows

    def write(self, writer: StoredSnapshotWriter) -> list[StateHandle]:
        self._log.stage(self.name, self._rows)
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


class _Builder:
    def __init__(self, rng: random.Random, log: OutputLog, reach: Reach) -> None:
        self.random = rng
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
        self.add(uid, parallelism, partial(NumberingSource, uid, count, self.reach), is_source=True)
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


def random_pipeline(rng: random.Random, log: OutputLog, reach: Reach) -> Pipeline:
    """A graph of one to three sources, up to four stages, and a sink for whatever is left."""
    builder = _Builder(rng, log, reach)
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        builder.source()
    for _ in range(rng.randint(1, 4)):
        builder.stage()
    builder.sinks()
    graph = JobGraph("simulated", tuple(builder.operators), tuple(builder.edges))
    return Pipeline(graph, builder.expected, builder.totals)
