"""The pipeline while it is being written, and its translation into a ``JobGraph``.

A *transformation* is an operator that is still being described: its settings may change, so uid,
parallelism and the kind of its edges are settled only when the graph is built, and its operator
factory is made then, from the settled parallelism.

A job is made of the sinks that were attached since the last one, with all that leads to them. A
stream may therefore be used again after its job has run: its operators run in the next job as well.

An operator without a uid gets one from its name and its rank among the operators of that name, in
the order of the program (``map-2``): the same program gives the same uids.

A source reads the columns that its consumers read, as far as these name them. A consumer that names
no columns reads all: a function of the user's, a sink. One that *passes on* its input, such as a
filter, reads besides what its own consumers read.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from weir.common.notebook import cell_of
from weir.common.typeinfo import TypeInformation
from weir.common.watermark import WatermarkStrategy
from weir.config import JobConfig
from weir.errors import GraphError
from weir.graph.key_groups import default_max_parallelism
from weir.graph.logical import Chaining, Edge, JobGraph, Operator, Partitioning
from weir.ids import OperatorId
from weir.operators.aggregates import EVERY_ROW, AggregateSpec
from weir.operators.bad_records import FAIL, ErrorPolicy
from weir.operators.keys import ColumnKeySelector

OperatorFactory: TypeAlias = Callable[[], Any]
MakeFactory: TypeAlias = Callable[[int], OperatorFactory]  # From the parallelism.
# The names among those of a schema; None: all of them, or not known.
ReadColumns: TypeAlias = Callable[[pa.Schema], frozenset[str] | None]


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """The columns of its input that an operator reads."""

    names: Iterable[str] | ReadColumns
    passes_on: bool = False  # Its output has the columns of its input, all of them.

    def names_in(self, schema: pa.Schema) -> frozenset[str] | None:
        """The names of the columns that it reads from records of this schema."""
        return self.names(schema) if callable(self.names) else frozenset(self.names)


def aggregate_use(selector: ColumnKeySelector, specs: Iterable[AggregateSpec]) -> ColumnUse:
    """The columns that aggregates read."""
    values = (spec.column for spec in specs if spec.column != EVERY_ROW)
    return ColumnUse((*selector.column_names, *values))


def timed_use(strategy: WatermarkStrategy) -> ColumnUse | None:
    """The columns from which event time is assigned."""
    if strategy.assign is not None:
        return None
    return ColumnUse(() if strategy.column is None else (strategy.column,), passes_on=True)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a stream: an operator's output, and the partitioning with which it leaves."""

    of: "Transformation"
    partitioning: Partitioning | None = None  # None: forward where parallelism allows it.
    selector: Any = None
    side_tag: str | None = None

    def parted(self, partitioning: Partitioning, selector: Any = None) -> "End":
        """The same output with another partitioning."""
        return replace(self, partitioning=partitioning, selector=selector)


@dataclass(eq=False, slots=True)
class Transformation:
    """An operator that is still being described."""

    name: str
    make_factory: MakeFactory
    inputs: tuple[End, ...] = ()
    uid: str | None = None
    parallelism: int | None = None
    parallelism_max: int | None = None  # An upper bound (1 for a global operator).
    max_parallelism: int | None = None
    chaining: Chaining = Chaining.ALWAYS
    is_sink: bool = False
    files: str | None = None  # The directory that a file sink commits its output to.
    keyed: bool = False
    per_record: bool = False  # A function is called with one record at a time: on_error applies.
    on_error: ErrorPolicy | None = None  # None: the job's.
    output_type: TypeInformation | None = None  # Of the main output, where it is declared.
    uses: ColumnUse | None = None  # None: it may read all columns of its input.
    # Of a source that can leave out what its consumers do not need: from the columns that they
    # read, and the filters that all records pass first.
    narrowed: Callable[[ReadColumns, Sequence[pc.Expression]], MakeFactory] | None = None
    row_filter: pc.Expression | None = None  # It passes on the rows of which this is true.
    # The operator that brings this one along, which takes its uid from it ("sum-1-combine") and
    # its parallelism from its own input, so that input and companion are chained.
    companion_of: "Transformation | None" = None
    role: str = ""
    function: Any = None  # The user's, where it has one; for remarks on it.
    kind: str = ""  # The name that it was made with.
    location: str = field(default_factory=lambda: caller_location())  # For messages.
    number: int = 0  # Its place in the program, once it is added to the environment.

    def __post_init__(self) -> None:
        self.kind = self.kind or self.name

    @property
    def label(self) -> str:
        """The operator as messages name it: ``'Map' (pipeline.py:12)``."""
        return f"{self.name!r} ({self.location})"

    @property
    def is_source(self) -> bool:
        """Whether the operator has no inputs."""
        return not self.inputs


class Always:
    """A factory that does not depend on the parallelism."""

    def __init__(self, factory: OperatorFactory) -> None:
        self._factory = factory

    def __call__(self, parallelism: int) -> OperatorFactory:
        return self._factory


def leading_to(new: Iterable[Transformation]) -> list[Transformation]:
    """The operators of the job that executes the ``new`` ones, in the order of the program.

    They are the new sinks and all that leads to them, whether new or executed before. Where no sink
    is new they are all new operators, which run for what their functions do, and what leads there.
    """
    new = list(new)
    waiting = [t for t in new if t.is_sink] or new
    members: dict[int, Transformation] = {}
    while waiting:
        t = waiting.pop()
        if t.number not in members:
            members[t.number] = t
            waiting += [end.of for end in t.inputs]
    return [members[number] for number in sorted(members)]


def caller_location() -> str:
    """File and line of the innermost call from outside Weir: ``pipeline.py:12``, ``cell 3:2``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_weir(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    file = frame.f_code.co_filename
    cell = cell_of(file)
    name = os.path.basename(file) if cell is None else f"cell {cell}"
    return f"{name}:{frame.f_lineno}"


def _is_weir(module: str) -> bool:
    return module.startswith("weir.") and not module.startswith("weir.examples.")


def build_graph(
    transformations: Iterable[Transformation],
    config: JobConfig,
    *,
    chaining: bool,
    on_error: ErrorPolicy = FAIL,
) -> JobGraph:
    """The checked graph of all transformations.

    ``on_error`` is the policy of operators per record that have none of their own.

    Raises:
        GraphError: There is no source, an operator's parallelism lies above its max parallelism,
            or ``JobGraph`` refuses the graph.
    """
    members = list(transformations)
    if not members:
        raise GraphError(
            "the pipeline has no source; begin with env.from_collection(...) or "
            "env.from_source(...)"
        )
    uids = _uids(members)
    parallelism = {t: _parallelism(t, config.parallelism) for t in members}
    job_max = config.max_parallelism or default_max_parallelism(config.parallelism)
    for t in members:
        _check_parallelism(t.name, parallelism[t], t.max_parallelism or job_max)
    operators = tuple(
        Operator(
            uid=uids[t],
            name=t.name,
            parallelism=parallelism[t],
            factory=_making(t, members)(parallelism[t]),
            max_parallelism=t.max_parallelism,
            chaining=t.chaining if chaining else Chaining.NEVER,
            is_source=t.is_source,
            is_sink=t.is_sink,
            keyed=t.keyed,
            files=t.files,
            location=t.location,
            on_error=_policy(t, on_error),
        )
        for t in members
    )
    edges = tuple(_edges(members, uids, parallelism))
    return JobGraph(config.name, operators, edges)


def _making(t: Transformation, members: list[Transformation]) -> MakeFactory:
    if t.narrowed is None:
        return t.make_factory
    return t.narrowed(partial(columns_read, t, members), list(_filters_behind(t, members)))


def _filters_behind(t: Transformation, members: list[Transformation]) -> Iterator[pc.Expression]:
    """The filters that all records of an operator pass before anything else sees them."""
    consumers = [(member, end) for member in members for end in member.inputs if end.of is t]
    if len(consumers) == 1:
        ((consumer, end),) = consumers
        if consumer.row_filter is not None and end.side_tag is None:
            yield consumer.row_filter
            yield from _filters_behind(consumer, members)


def columns_read(
    producer: Transformation, members: Sequence[Transformation], schema: pa.Schema
) -> frozenset[str] | None:
    """The columns that all consumers of a main output read; None: all of them."""
    needed: set[str] = set()
    for member in members:
        for end in member.inputs:
            if end.of is producer:
                read = _read_over(end, member, members, schema)
                if read is None:
                    return None
                needed |= read
    return frozenset(needed)


def _read_over(
    end: End, member: Transformation, members: Sequence[Transformation], schema: pa.Schema
) -> frozenset[str] | None:
    """The columns read by one consumer, those behind it, and the partitioning before it."""
    keys = () if end.selector is None else getattr(end.selector, "column_names", None)
    use = member.uses
    if end.side_tag is not None or keys is None or use is None:
        return None
    read = use.names_in(schema)
    further = columns_read(member, members, schema) if use.passes_on else frozenset[str]()
    return None if read is None or further is None else read | further | frozenset(keys)


def common_type(ends: Iterable[End]) -> TypeInformation | None:
    """The declared type of the records of all ends, if it is the same."""
    types = [end.of.output_type if end.side_tag is None else None for end in ends]
    return types[0] if types.count(types[0]) == len(types) else None


def _policy(t: Transformation, default: ErrorPolicy) -> ErrorPolicy | None:
    policy = t.on_error or default
    if not t.per_record or policy.action == "fail":
        return None
    return replace(policy, record_type=common_type(t.inputs))


def _parallelism(t: Transformation, default: int) -> int:
    if t.companion_of is not None:
        return _parallelism(t.inputs[0].of, default)
    wanted = t.parallelism if t.parallelism is not None else default
    return wanted if t.parallelism_max is None else min(wanted, t.parallelism_max)


def _check_parallelism(name: str, parallelism: int, max_parallelism: int) -> None:
    if parallelism > max_parallelism:
        raise GraphError(
            f"{name!r} has parallelism {parallelism}, above its max parallelism {max_parallelism}; "
            "call set_max_parallelism with at least that much (state keeps it for ever)"
        )


def _edges(
    members: list[Transformation],
    uids: dict[Transformation, OperatorId],
    parallelism: dict[Transformation, int],
) -> Iterator[Edge]:
    for t in members:
        for end in t.inputs:
            partitioning = end.partitioning
            if partitioning is None:
                alike = parallelism[end.of] == parallelism[t]
                partitioning = Partitioning.FORWARD if alike else Partitioning.REBALANCE
            yield Edge(
                uids[end.of],
                uids[t],
                partitioning,
                side_tag=end.side_tag,
                selector=end.selector,
            )


def _uids(members: list[Transformation]) -> dict[Transformation, OperatorId]:
    taken = {t.uid for t in members if t.uid is not None}
    uids: dict[Transformation, OperatorId] = {}
    ranks: dict[str, int] = {}
    for t in members:
        if t.companion_of is not None:
            continue
        if t.uid is not None:
            uids[t] = OperatorId(t.uid)
            continue
        base = re.sub(r"[^a-z0-9]+", "-", t.name.lower()).strip("-") or "operator"
        while True:
            ranks[base] = ranks.get(base, 0) + 1
            uid = f"{base}-{ranks[base]}"
            if uid not in taken:
                break
        uids[t] = OperatorId(uid)
    for t in members:
        if t.companion_of is not None:
            uids[t] = OperatorId(f"{uids[t.companion_of]}-{t.role}")
    return uids
