"""Whole programs: one to three sources, and stages that give a defined result behind them."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.programs.generate import (
    columns,
    failing,
    keyed,
    sources,
    stateless,
    tolerant,
    windows,
)
from tests.programs.generate.growing import Growing
from tests.programs.model import Order, Program, Stream, Time

Source = Callable[[Growing], None]
StageBehind = Callable[[Growing, Stream], None]

# By the tags that leave them out.
SOURCES: dict[str, Source] = {
    "collection": sources.collection,
    "generator": sources.generator,
    "vectorised": sources.vectorised,
    "sequence": sources.sequence,
    "parquet": sources.parquet,
}
STAGES: dict[str, StageBehind] = {
    "map": stateless.map_each,
    "flat_map": stateless.flat_map,
    "filter": stateless.keep_some,
    "split": stateless.split,
    "spread": stateless.spread,
    "union": stateless.union,
    "keyed_map": keyed.keyed_map,
    "accumulate": keyed.accumulate,
    "reduce": keyed.reduce,
    "running": keyed.running,
    "count": keyed.count,
    "timers": keyed.timers,
    "window": windows.window,
    "batches": columns.batches,
    "columns": columns.columns,
    "by_name": columns.by_name,
    "failing": failing.failing,
    "tolerant": tolerant.tolerant,
}


def all_but(*wanted: str) -> frozenset[str]:
    """Tags to avoid for programs that consist of these sources and stages only."""
    return frozenset(SOURCES.keys() | STAGES.keys()) - frozenset(wanted)


# Programs whose checkpoints hold changes of columnar tables, and of other keyed state.
TABLES = all_but("vectorised", "generator", "columns") | {"window-columns"}
STATES = all_but("collection", "vectorised", "accumulate", "running", "reduce")


@st.composite
def programs(
    draw: Callable[[Any], Any],
    avoid: frozenset[str] = frozenset(),
    *,
    stages_max: int = 5,
    rows_min: int = 1,
) -> Program:
    """Programs of one to three sources and some stages."""
    growing = Growing(draw, avoid, rows_min)
    for _ in range(draw(st.sampled_from([1, 1, 1, 1, 1, 2, 3]))):
        SOURCES[growing.pick(growing.wanted(SOURCES))](growing)
    for _ in range(draw(st.integers(1, stages_max))):
        _add_stage(growing)
    return growing.finish()


def _add_stage(growing: Growing) -> None:
    """Write one more stage behind a stream, if one of those that suit it is wanted."""
    options = [s for s in growing.unread() + growing.streams if s.order is not Order.LAST]
    if not options:
        return
    stream = growing.pick(options)
    growing.reads(stream)
    if wanted := growing.wanted(_suiting(stream, len(growing.streams))):
        STAGES[growing.pick(wanted)](growing, stream)


def _suiting(stream: Stream, streams: int) -> list[str]:
    """The stages that give a defined result behind a stream; the likelier ones several times."""
    stages = ["map", "map", "flat_map", "filter", "split", "spread", "tolerant"]
    if stream.order is not Order.NONE:
        stages += ["keyed_map", "reduce", "running", "count"]
        stages += ["accumulate"] * 4
    if stream.time is not Time.NONE:
        stages += ["window"] * 4
    if stream.time is Time.EXACT and stream.late_free:
        # A late record's timer is in the past: it fires with the next watermark of any kind.
        stages += ["timers"] * 3
    if stream.form in ("dict", "row") and {stream.key, stream.value} <= {"int", "text"}:
        stages += ["batches", "columns", "by_name"] * 2
    if streams > 1:
        stages.append("union")
    return [*stages, "failing"]
