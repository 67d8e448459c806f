"""The columns of a source that its consumers read, as far as these name them.

A consumer that names no columns reads all: a function of the user's, a sink. One that *passes on*
its input, such as a filter, reads besides what its own consumers read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from weir.common.watermark import WatermarkStrategy
from weir.operators.aggregates import EVERY_ROW, AggregateSpec
from weir.operators.keys import ColumnKeySelector

if TYPE_CHECKING:
    from weir.datastream.transformation import End, Transformation

# The names among those of a schema; None: all of them, or not known.
NamedIn: TypeAlias = Callable[[pa.Schema], frozenset[str] | None]


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """The columns of its input that an operator reads."""

    names: Iterable[str] | NamedIn
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


def columns_read(
    producer: "Transformation", members: "Sequence[Transformation]", schema: pa.Schema
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
    end: "End", member: "Transformation", members: "Sequence[Transformation]", schema: pa.Schema
) -> frozenset[str] | None:
    """The columns read by one consumer, those behind it, and the partitioning before it."""
    keys = () if end.selector is None else getattr(end.selector, "column_names", None)
    use = member.uses
    if end.side_tag is not None or keys is None or use is None:
        return None
    read = use.names_in(schema)
    further = columns_read(member, members, schema) if use.passes_on else frozenset[str]()
    return None if read is None or further is None else read | further | frozenset(keys)
