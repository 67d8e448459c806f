"""Bugs that were once in the code, each of which random programs must find.

Each test plants one bug again and demands that a bounded number of programs of its kind notices.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.programs.check import Wrong, check, meaning_of
from tests.programs.generate import STATES, TABLES, all_but, programs, variations
from tests.programs.generate.sources import ROWS_MAX
from tests.programs.model import Program
from tests.programs.run import Variation
from tests.programs.source_text import body_of
from tests.simulation.catching import Show
from weir.common.batch import Batch
from weir.common.inferred_schema import InferredSchema
from weir.datastream import TimeDomain, environment
from weir.operators import stateless
from weir.operators.collector import Collector
from weir.operators.hand_over import HandOver
from weir.operators.keyed import TimerOperator
from weir.operators.sources import parquet_source
from weir.operators.watermark_output import WatermarkOutput
from weir.operators.windows.window_operator import WindowOperator
from weir.protocol.elements import Element, Records, Watermark
from weir.protocol.restore import CHANGES
from weir.state import store
from weir.state.backends.rocksdb_timers import FrozenRocksTimers
from weir.state.columns.changed_rows import ChangedRows
from weir.state.columns.column import FrozenColumn
from weir.state.keyed import State
from weir.state.store import Changes
from weir.state.timers import Timer
from weir.worker import gates

PROGRAMS_MAX = 300

Plant = Callable[[pytest.MonkeyPatch], None]


def caught(
    bug: str,
    show: Show,
    avoid: frozenset[str],
    *,
    kinds: Sequence[str] = ("calm", "slow"),
    rows_min: int = 1,
    stages_max: int = 5,
    first: int = 1,
) -> None:
    """Draw programs until one notices.

    Args:
        kinds: Those of the variations.
        first: The seed of the draws: one whose first programs are known to notice.
    """
    drawn = 0

    @seed(first)
    @settings(
        max_examples=PROGRAMS_MAX,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(avoid, stages_max=stages_max, rows_min=rows_min), variations(kinds))
    def draw(program: Program, variation: Variation) -> None:
        nonlocal drawn
        drawn += 1
        text = body_of(program)
        check(text, program.outputs, meaning_of(text), variation)

    with pytest.raises(Wrong) as noticed:
        draw()
    show(f"{bug}: caught at program {drawn - 1}: {str(noticed.value).splitlines()[1][:150]}")


def _tell_event_time_behind_the_source(patch: pytest.MonkeyPatch) -> None:
    """Event time follows the records of a subtask, whichever splits they are from."""
    patch.setattr(environment, "tells_event_time", lambda source: False)


def _keep_as_given(patch: pytest.MonkeyPatch) -> None:
    """State holds the caller's object, of its own type."""
    production = State.__init__

    def init(state: State, table: Any, cursor: Any) -> None:
        production(state, table, cursor)
        state._normalise = _itself

    patch.setattr(State, "__init__", init)


def _hand_over_uncopied(patch: pytest.MonkeyPatch) -> None:
    """A result of a function goes on as it is."""
    production = HandOver.__init__

    def init(hand_over: HandOver, *arguments: Any) -> None:
        production(hand_over, *arguments)
        hand_over.own = None

    patch.setattr(HandOver, "__init__", init)


def _yield_what_state_keeps(patch: pytest.MonkeyPatch) -> None:
    """A value that a function puts into state and returns is one object, in both places."""
    _keep_as_given(patch)
    _hand_over_uncopied(patch)


def _leave_out_for_one_row(patch: pytest.MonkeyPatch) -> None:
    """A source passes over row groups that may hold a row for which a filter is not true."""
    production = parquet_source.ruled_out

    def too_many(path: str, groups: Sequence[int], kept: pc.Expression) -> frozenset[int]:
        return frozenset(groups) - production(path, groups, ~kept)

    patch.setattr(parquet_source, "ruled_out", too_many)


def _share_batches(patch: pytest.MonkeyPatch) -> None:
    """All consumers of an output have the same records."""
    patch.setattr(Batch, "copied", _itself)


def _stop_at_stop_iteration(patch: pytest.MonkeyPatch) -> None:
    """A function runs inside ``map``, which takes its StopIteration for an end."""
    patch.setattr(HandOver, "of_each", lambda _, call, rows: list(map(call, rows)))
    patch.setattr(stateless, "all_handled", lambda *_: None)


def _take_fields_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """Columns are the fields of a slice's first record."""

    def columns(_: InferredSchema, rows: Sequence[Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(_named(row)) for row in rows])

    patch.setattr(InferredSchema, "columns", columns)


def _named(row: Any) -> Any:
    return row if isinstance(row, dict) else row.as_dict()


def _leave_types_undemanded(patch: pytest.MonkeyPatch) -> None:
    """A declared type is not looked at before a record is stored or sent."""

    def batch(hand_over: HandOver, rows: list[Any], timestamps: Any = None) -> Batch:
        return Batch.of_rows(rows, hand_over._kind, timestamps)

    patch.setattr(HandOver, "batch", batch)


def _take_due_timers_at_once(patch: pytest.MonkeyPatch) -> None:
    """All due timers have left the queue before the first of them fires."""

    def fire_due(
        operator: TimerOperator, domain: TimeDomain, until_ms: int, records_max: int
    ) -> tuple[int, bool]:
        queue = operator.timers.queues[domain.value]
        due: list[Timer] = []
        while len(due) < records_max and (timer := queue.poll(until_ms)) is not None:
            due.append(timer)
        for timer in due:
            operator._input.backend.set_current_key_and_group(timer.key, timer.group)
            operator.fire(timer, domain)
        operator.collector.flush()
        next_ms = queue.next_ms()
        return len(due), next_ms is None or next_ms > until_ms

    patch.setattr(TimerOperator, "_fire_due", fire_due)


def _fire_windows_of_this_size(patch: pytest.MonkeyPatch) -> None:
    """The end of a window is its start and the size that windows have now."""
    production = WindowOperator.fire

    def fire(operator: WindowOperator, timer: Timer, domain: TimeDomain) -> None:
        start, _, _ = str(timer.namespace).partition("/")
        if timer.timestamp_ms == int(start) + operator._windows.size_ms - 1:
            production(operator, timer, domain)

    patch.setattr(WindowOperator, "fire", fire)


def _keep_changes_of_bad_records(patch: pytest.MonkeyPatch) -> None:
    """Changes of keyed state stay that a function made before it raised."""
    patch.setattr(Changes, "undo", Changes.keep)


def _emit_for_bad_records(patch: pytest.MonkeyPatch) -> None:
    """Records go on that a function yielded before it raised."""
    patch.setattr(Collector, "withdraw", lambda *_: None)


def _delay_watermarks_of_a_slice(patch: pytest.MonkeyPatch) -> None:
    """Watermarks within a slice come behind all of its records."""
    production = WatermarkOutput._emit_within

    def emit(output: WatermarkOutput, batch: Batch, rows: Any, reached: Any) -> None:
        production(output, batch, np.array([len(batch) - 1]), reached)

    patch.setattr(WatermarkOutput, "_emit_within", emit)


def _fire_after_the_slice(patch: pytest.MonkeyPatch) -> None:
    """Timers fire behind all records of a batch, and not at the watermarks between them."""

    def parts(records: Records, rows_max: int, *, cuts: bool) -> list[Element]:
        watermarks = records.payload.watermarks
        if not cuts or watermarks is None:
            return production(records, rows_max, cuts=cuts)
        batch, last = records.payload.marked(None), Watermark(watermarks.last_ms)
        return [replace(records, payload=batch), last]

    production = gates._parts
    patch.setattr(gates, "_parts", parts)


def _leave_changes_unread(patch: pytest.MonkeyPatch) -> None:
    """A restore reads what was written whole alone."""
    production = store.parts_to_read

    def whole(*arguments: Any) -> list[Any]:
        return [part for part in production(*arguments) if part[0].handle.mode != CHANGES]

    patch.setattr(store, "parts_to_read", whole)


def _read_the_newest_first(patch: pytest.MonkeyPatch) -> None:
    """A restore lets an older value follow a newer one."""
    production = store.parts_to_read
    patch.setattr(store, "parts_to_read", lambda *arguments: production(*arguments)[::-1])


def _leave_rows_unmarked(patch: pytest.MonkeyPatch) -> None:
    """A row of a table that is there already does not count as changed."""
    patch.setattr(ChangedRows, "mark", lambda rows, slots: None)


def _write_into_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A snapshot that is written later has values from behind its barrier."""
    patch.setattr(FrozenColumn, "save_before_write", lambda view, slots: None)


def _leave_timers_on_disk_out(patch: pytest.MonkeyPatch) -> None:
    """A snapshot has the timers in memory alone."""
    production = FrozenRocksTimers.rows

    def rows(frozen: FrozenRocksTimers, *arguments: Any, **options: Any) -> Iterator[Any]:
        frozen._view = None
        return production(frozen, *arguments, **options)

    patch.setattr(FrozenRocksTimers, "rows", rows)


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug, the programs and variations that are drawn to find it, and how it is planted again."""

    name: str
    avoid: frozenset[str]
    plant: Plant
    kinds: tuple[str, ...] = ("calm", "slow")
    rows_min: int = 1
    stages_max: int = 5
    first: int = 1


OTHERS = frozenset(  # Idioms of the other bugs, which would be noticed in its place.
    {
        "typed",
        "typed-source",
        "typed-state",
        "tuple-state",
        "changed-after-put",
        "float32",
        "misfit",
    }
    | {"aliased-record", "aliased-state", "mutates-record", "mutates-value", "same-buffer"}
    | {"changed-later", "changes-elements", "in-place", "stop-iteration", "varying-fields", "late"}
)


def only(sources_and_stages: str, *idioms: str) -> frozenset[str]:
    """Tags to avoid for programs of these sources and stages, with these idioms of ``OTHERS``."""
    return all_but(*sources_and_stages.split()) | (OTHERS - set(idioms))


TIMERS = only("collection generator vectorised timers window")

# Long runs of short programs, which take several checkpoints before they are killed.
between_increments = partial(
    Bug, kinds=("kill between increments",), rows_min=ROWS_MAX, stages_max=2
)

BUGS = (
    Bug(
        "a rescale makes records late",
        only("generator vectorised window"),
        kinds=("rescale",),
        rows_min=20,
        plant=_tell_event_time_behind_the_source,
    ),
    Bug(
        "a list stays a list under TUPLE",
        only("collection accumulate", "tuple-state", "typed-state"),
        plant=_keep_as_given,
    ),
    Bug(
        "a list under TUPLE is torn by a snapshot that is written later",
        only("collection accumulate", "torn-state"),
        kinds=("late kill",),
        plant=_keep_as_given,
        rows_min=20,
    ),
    Bug(
        "what is yielded is state's own",
        only("collection generator accumulate", "aliased-state"),
        plant=_yield_what_state_keeps,
    ),
    Bug(
        "what is reduced is emitted as it is kept",
        only("collection reduce", "in-place"),
        plant=_hand_over_uncopied,
        first=2,
    ),
    Bug(
        "what was emitted is changed later",
        only("collection map flat_map split", "aliased-record", "same-buffer", "changed-later"),
        plant=_hand_over_uncopied,
        first=3,
    ),
    Bug(
        "branches share records",
        only("collection generator map flat_map", "mutates-record", "mutates-value"),
        plant=_share_batches,
    ),
    Bug(
        "StopIteration ends a slice",
        only("collection generator failing", "stop-iteration"),
        plant=_stop_at_stop_iteration,
    ),
    Bug(
        "fields vanish",
        only("collection failing", "varying-fields"),
        plant=_take_fields_of_the_first,
    ),
    Bug(
        "declared types are not demanded",
        only("collection failing", "misfit"),
        plant=_leave_types_undemanded,
    ),
    Bug(
        "declared types are not applied",
        only("collection map", "typed", "typed-source"),
        plant=_leave_types_undemanded,
    ),
    Bug(
        "timers are popped all at once",
        only("collection vectorised timers"),
        plant=_take_due_timers_at_once,
    ),
    Bug(
        "watermarks come behind their slice",
        only("collection vectorised window columns", "late"),
        plant=_delay_watermarks_of_a_slice,
        first=2,
    ),
    Bug(
        "timers fire behind the slice",
        only("collection vectorised timers window", "late"),
        plant=_fire_after_the_slice,
        first=2,
    ),
    Bug(
        "another window size loses open windows",
        only("collection vectorised window") | {"window-reduce"},
        kinds=("resized windows",),
        plant=_fire_windows_of_this_size,
    ),
    Bug(
        "a row group is left out for one of its rows",
        only("parquet by_name"),
        plant=_leave_out_for_one_row,
        first=2,
    ),
    Bug(
        "a bad record leaves its state",
        only("collection vectorised tolerant"),
        plant=_keep_changes_of_bad_records,
    ),
    Bug(
        "a bad record leaves its output",
        only("collection tolerant"),
        plant=_emit_for_bad_records,
    ),
    between_increments("changes of a table are not read", TABLES, _leave_changes_unread),
    between_increments(
        "changes of a table are read before the whole", TABLES, _read_the_newest_first
    ),
    between_increments("rows of a table are not marked as changed", TABLES, _leave_rows_unmarked),
    between_increments(
        "columns are torn by a snapshot that is written later",
        TABLES,
        _write_into_snapshots,
        kinds=("lazy increments",),
    ),
    between_increments("changes of a state are not read", STATES, _leave_changes_unread),
    between_increments("timers on disk are in no snapshot", TIMERS, _leave_timers_on_disk_out),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    bug.plant(monkeypatch)
    caught(
        bug.name,
        show,
        bug.avoid,
        kinds=bug.kinds,
        rows_min=bug.rows_min,
        stages_max=bug.stages_max,
        first=bug.first,
    )
