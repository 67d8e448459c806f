"""The compatibility preview: what it says of a checkpoint and a program, and that it comes true."""

import json
import os
import random
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from weir.cli import preview as command
from weir.common import Duration
from weir.common.batch import Batch
from weir.common.row import Row
from weir.common.typeinfo import TypeInformation, Types
from weir.common.watermark import WatermarkStrategy
from weir.config import JobConfig
from weir.datastream import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
)
from weir.datastream.connectors import NumberSequenceSource
from weir.datastream.execution import CapturedJob, ExecutionOptions, capturing, overriding
from weir.errors import RestoreError, UserError
from weir.graph.exchanges import exchanges_of, input_name
from weir.graph.key_groups import key_group, key_group_range
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.local.cluster import run_in_process
from weir.operators.sinks import CollectSink
from weir.protocol.deployment import Versions
from weir.protocol.elements import MIN_WATERMARK_MS, CheckpointKind, Records
from weir.protocol.events import CheckpointSettled, JobEvent
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import OperatorAck
from weir.protocol.wire import from_wire, to_wire
from weir.state.channel_state import ChannelPart
from weir.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from weir.state.store import OperatorStateStore
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest, OperatorSummary, dump, load
from weir.storage.store import CheckpointStore, checksum_of, store_for
from weir.storage.writer import StoredSnapshotWriter
from weir.tools.restore_preview import (
    NOT_DECLARED,
    CompatibilityPreview,
    OperatorPreview,
    OperatorVerdict,
    StateVerdict,
    preview_restore,
)

JOB = JobId("job-1")
ONE = CheckpointId(1)
KEYS = range(8)
SOURCE = NumberSequenceSource(0, 7)

# What functions found in their restored state: by operator, state and key. One process, one thread.
FOUND: dict[tuple[str, str, int], Any] = {}


# Programs, and the checkpoints they leave ------------------------------------------------------


@dataclass(frozen=True)
class Keyed:
    """An operator of a program: what it declares, as name -> (kind, type)."""

    states: dict[str, tuple[str, TypeInformation]] = field(default_factory=dict)
    parallelism: int = 1
    max_parallelism: int | None = None
    fails: BaseException | None = None  # Raised by open().
    late: bool = False  # Declares with its first record only.


@dataclass(frozen=True)
class Program:
    operators: dict[str, Keyed]
    source_parallelism: int = 1
    allow: bool = False

    def captured(self) -> CapturedJob:
        """The job that would run."""
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
        stream = env.from_source(SOURCE, WatermarkStrategy.no_watermarks(), "numbers")
        stream.uid("numbers").set_parallelism(self.source_parallelism)
        for uid, keyed in self.operators.items():
            stream = stream.key_by(lambda value: value).process(Holder(uid, keyed))
            stream.uid(uid).name(uid).set_parallelism(keyed.parallelism)
            if keyed.max_parallelism is not None:
                stream.set_max_parallelism(keyed.max_parallelism)
        stream.sink_to(CollectSink()).uid("sink").set_parallelism(1)
        options = ExecutionOptions(allow_non_restored_state=self.allow or None)
        with overriding(options), capturing() as capture:
            env.execute("program")
        return capture.jobs[0]


class Holder(KeyedProcessFunction):
    """Declares states, and notes what it finds in them."""

    def __init__(self, uid: str, keyed: Keyed) -> None:
        self.uid = uid
        self.keyed = keyed
        self.held: dict[str, Any] = {}

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context
        if not self.keyed.late:
            self.declare()
        if self.keyed.fails is not None:
            raise self.keyed.fails

    def declare(self) -> None:
        self.held = {
            name: declared(self.runtime_context, name, kind, type_info)
            for name, (kind, type_info) in self.keyed.states.items()
        }

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.keyed.late:
            self.declare()
        for name, (kind, _) in self.keyed.states.items():
            FOUND[self.uid, name, value] = contents(kind, self.held[name])
        yield value


def declared(ctx: Any, name: str, kind: str, type_info: TypeInformation) -> Any:
    match kind:
        case "list":
            return ctx.get_list_state(ListStateDescriptor(name, type_info))
        case "map":
            return ctx.get_map_state(MapStateDescriptor(name, Types.STRING(), type_info))
        case _:
            return ctx.get_state(ValueStateDescriptor(name, type_info))


def contents(kind: str, state: Any) -> Any:
    match kind:
        case "list":
            return state.get()
        case "map":
            return dict(state.items())
        case _:
            return state.value()


def items_of(kind: str, value: Any) -> list[Any]:
    """The values in what ``contents`` gave."""
    return {"list": list, "map": lambda held: list(held.values())}.get(kind, lambda v: [v])(value)


def example(type_info: TypeInformation) -> Any:
    """A value of a type."""
    match str(type_info):
        case "INT" | "LONG" | "SHORT":
            return 7
        case "DOUBLE":
            return 7.5
        case "STRING":
            return "seven"
    names = type_info.get_field_names()  # type: ignore[attr-defined]
    kinds = type_info.get_field_types()  # type: ignore[attr-defined]
    return Row(**dict(zip(names, map(example, kinds), strict=True)))


def checkpoint(
    program: Program, root: Path, *, inline_max: int = 20_000, undelivered: int = 0
) -> Manifest:
    """The checkpoint that the program leaves when each of its keys has state.

    ``undelivered`` is how many rows its sink had not shown yet.
    """
    job = program.captured()
    sinks = {op.uid for op in job.graph.operators if op.is_sink}

    def put(subtask: SubtaskId, state: OperatorStateStore) -> None:
        if subtask.operator in sinks and undelivered:
            item = {"job": JOB, "checkpoint": ONE, "rows": "", "count": undelivered}
            state.list_state("undelivered").update([item])
        if subtask.operator in program.operators:
            fill(state, program.operators[subtask.operator], state.max_parallelism)
            item = {"subtask": subtask.index, "watermark_ms": MIN_WATERMARK_MS}
            state.list_state("watermark", "union").update([item])

    return checkpoint_of(job, root, put, inline_max=inline_max)


def checkpoint_of(
    job: CapturedJob,
    root: Path,
    put: Callable[[SubtaskId, OperatorStateStore], None],
    *,
    inline_max: int = 20_000,
) -> Manifest:
    """A checkpoint of the job in which operators have the state that ``put`` gives them."""
    store = store_for(str(root))
    summaries, acks = [], []
    for op in job.graph.operators:
        groups = op.max_parallelism or 128
        summaries.append(OperatorSummary(op.uid, op.name, op.parallelism, groups, op.is_source))
        for index in range(op.parallelism):
            owned = key_group_range(groups, op.parallelism, index)
            state = OperatorStateStore(owned, groups, keyed=op.keyed, read=lambda handle: b"")
            if op.is_source:
                splits = SOURCE.discover(op.parallelism)[index :: op.parallelism]
                items = [{"split": split, "position": None} for split in splits]
                state.list_state("splits").update(items)
            subtask = SubtaskId(op.uid, index)
            put(subtask, state)
            writer = StoredSnapshotWriter(
                store, JOB, AttemptNumber(1), ONE, subtask,
                inline_max=inline_max, cancelled=lambda: False,
            )  # fmt: skip
            parts = state.freeze(ONE)
            acks.append(
                OperatorAck(subtask, tuple(h for part in parts for h in part.write(writer)))
            )
    manifest = Manifest(
        job_id=JOB, job_name="program", checkpoint_id=ONE, parent_id=None,
        kind=CheckpointKind.CHECKPOINT, attempt=AttemptNumber(1), triggered_ms=0, completed_ms=1,
        versions=Versions("1", "3.11", "20"), operators=tuple(summaries), acks=tuple(acks),
    )  # fmt: skip
    store.put(JobLayout(JOB).manifest(ONE), dump(manifest))
    return manifest


def fill(state: OperatorStateStore, keyed: Keyed, groups: int) -> None:
    backend = state.keyed
    for key in KEYS:
        group = key_group(key, groups)
        if group not in state.key_groups:
            continue
        backend.set_current_key(key)
        state.timers.event_time.register(10**15, key)
        for name, (kind, type_info) in keyed.states.items():
            held, value = declared(backend, name, kind, type_info), example(type_info)
            match kind:
                case "list":
                    held.add(value)
                case "map":
                    held.put("k", value)
                case _:
                    held.update(value)


def previewed(program: Program, root: Path) -> CompatibilityPreview:
    job, store = program.captured(), store_for(str(root))
    path = JobLayout(JOB).manifest(ONE)
    manifest = load(store.read(path), path)
    assert isinstance(manifest, Manifest)
    return preview_restore(
        job.graph, job.config, manifest,
        uri=str(root), store=store, directory=JobLayout(JOB).directory,
    )  # fmt: skip


def restored(program: Program, root: Path) -> tuple[JobStatus, str]:
    """The status and cause of a job that really begins with the checkpoint."""
    FOUND.clear()
    job = program.captured()
    request = RestoreRequest.parse(f"{root}/{JOB}/chk-1")
    try:
        result = run_in_process(job.graph, job.config, restore_from=request)
    except RestoreError as error:
        return JobStatus.FAILED, str(error)
    return result.status, result.cause


def operator(preview: CompatibilityPreview, uid: str) -> OperatorPreview:
    return next(op for op in preview.operators if op.uid == uid)


def verdicts(preview: CompatibilityPreview, uid: str) -> dict[str, StateVerdict]:
    return {state.name: state.verdict for state in operator(preview, uid).states}


LONG, INT, DOUBLE, STRING = Types.LONG(), Types.INT(), Types.DOUBLE(), Types.STRING()
SMALL = Types.ROW_NAMED(["a"], [INT])
LARGE = Types.ROW_NAMED(["a", "b"], [LONG, STRING], defaults={"b": "new"})


# What it says ----------------------------------------------------------------------------------


def test_every_verdict_in_one_preview(tmp_path: Path) -> None:
    before = Program(
        {
            "same": Keyed({"kept": ("value", LONG), "wider": ("list", INT), "row": ("map", SMALL)}),
            "gone": Keyed({"x": ("value", LONG)}, parallelism=2),
            "scaled": Keyed({"x": ("value", LONG), "y": ("value", LONG)}, parallelism=2),
        },
        source_parallelism=3,
    )
    checkpoint(before, tmp_path)
    after = Program(
        {
            "same": Keyed(
                {
                    "kept": ("value", LONG),
                    "wider": ("list", DOUBLE),
                    "row": ("map", LARGE),
                    "added": ("value", STRING),
                }
            ),
            "scaled": Keyed({"y": ("value", STRING)}, parallelism=3),
            "fresh": Keyed({"x": ("value", LONG)}),
        },
        source_parallelism=2,
    )
    preview = previewed(after, tmp_path)
    assert [(op.uid, op.verdict.value) for op in preview.operators] == [
        ("numbers", "rescaled"),
        ("same", "kept"),
        ("scaled", "rescaled"),
        ("fresh", "new"),
        ("sink", "kept"),
        ("gone", "dropped"),
    ]
    assert operator(preview, "numbers").splits == 3
    same = verdicts(preview, "same")
    assert same == {
        "kept": "kept", "wider": "changed", "row": "changed", "added": "new",
        "timers": "kept", "watermark": "kept",
    }  # fmt: skip
    (row,) = [state for state in operator(preview, "same").states if state.name == "row"]
    assert row.changes == (
        "value: field a: INT is widened to LONG",
        "value: field b is added, 'new' in what was stored",
    )
    scaled = {state.name: state for state in operator(preview, "scaled").states}
    assert (scaled["x"].verdict, scaled["x"].note) == (StateVerdict.KEPT, NOT_DECLARED)
    assert scaled["y"].verdict is StateVerdict.UNMAPPABLE
    assert (
        operator(preview, "scaled").stored_parallelism,
        operator(preview, "scaled").parallelism,
    ) == (
        2,
        3,
    )
    assert verdicts(preview, "gone") == {
        "x": "dropped", "timers": "dropped", "watermark": "dropped",
    }  # fmt: skip
    assert verdicts(preview, "fresh")["x"] is StateVerdict.NEW
    assert not preview.would_restore
    assert len(preview.problems) == 2
    assert "the checkpoint holds state of gone" in preview.problems[0]
    assert preview.problems[1].startswith("operator 'scaled': state 'y' is value of LONG")
    assert from_wire(CompatibilityPreview, json.loads(json.dumps(to_wire(preview)))) == preview


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("no database"), "'b' failed in open(): OSError: no database"),
        (SystemExit(3), "operator 'b' could not be opened: sys.exit(3) ends no job"),
    ],
)
def test_all_problems_are_told_at_once(tmp_path: Path, error: BaseException, said: str) -> None:
    operators = {"a": Keyed({"x": ("value", LONG)}, max_parallelism=2), "b": Keyed()}
    checkpoint(Program({**operators, "c": Keyed({"x": ("value", LONG)})}), tmp_path)
    broken = Keyed({"x": ("list", LONG)}, parallelism=3)
    opened = Keyed(fails=error)
    preview = previewed(Program({"a": broken, "b": opened}), tmp_path)
    told = "\n".join(preview.problems)
    for part in ("state of c", "max parallelism 2", "value of LONG", said):
        assert part in told
    assert operator(preview, "b").notes == ("the operator could not be opened",)


def test_only_the_heads_of_large_states_are_read(tmp_path: Path) -> None:
    program = Program({"a": Keyed({"x": ("value", LONG)}, parallelism=2)})
    manifest = checkpoint(program, tmp_path, inline_max=10)
    read: list[tuple[str, int]] = []

    class Reading:
        def __init__(self, inner: CheckpointStore) -> None:
            self.inner = inner

        def read(self, path: str) -> bytes:
            read.append((path, -1))
            return self.inner.read(path)

        def read_range(self, path: str, start: int, length: int) -> bytes:
            read.append((path, length))
            return self.inner.read_range(path, start, length)

    job = program.captured()
    preview = preview_restore(
        job.graph, job.config, manifest,
        uri="", store=Reading(store_for(str(tmp_path))),  # type: ignore[arg-type]
        directory=JobLayout(JOB).directory,
    )  # fmt: skip
    assert preview.would_restore
    assert all(length > 0 for path, length in read if "keyed" in path)
    assert any("keyed" in path for path, _ in read)


def test_a_state_of_several_types_is_looked_at_in_all_of_them(tmp_path: Path) -> None:
    """Subtasks convert a late declared state when they first use it; one may not have done."""
    program = Program({"a": Keyed({"x": ("value", INT)}, parallelism=2)})
    first = checkpoint(program, tmp_path / "one")
    wider = Program({"a": Keyed({"x": ("value", LONG)}, parallelism=2)})
    second = checkpoint(wider, tmp_path)
    acks = tuple(
        one if one.subtask.index == 0 else other
        for one, other in zip(first.acks, second.acks, strict=True)
    )
    mixed = replace(second, acks=acks)
    (tmp_path / JOB / "chk-1" / "manifest").write_bytes(dump(mixed))
    preview = previewed(program, tmp_path)
    assert verdicts(preview, "a")["x"] is StateVerdict.UNMAPPABLE
    assert verdicts(previewed(wider, tmp_path), "a")["x"] is StateVerdict.CHANGED
    assert restored(program, tmp_path)[0] is JobStatus.FAILED
    assert restored(wider, tmp_path)[0] is JobStatus.FINISHED
    assert {FOUND["a", "x", key] for key in KEYS} == {7}


# That it comes true ----------------------------------------------------------------------------

TYPES = [INT, LONG, DOUBLE, STRING, SMALL, LARGE]


WIDER = {INT: LONG, SMALL: LARGE}


def some_states(rng: random.Random) -> dict[str, tuple[str, TypeInformation]]:
    names = rng.sample(["x", "y", "z"], rng.randint(0, 3))
    return {name: (rng.choice(["value", "list", "map"]), rng.choice(TYPES)) for name in names}


def some_program(rng: random.Random) -> Program:
    uids = rng.sample(["a", "b", "c"], rng.randint(1, 2))
    return Program(
        {
            uid: Keyed(some_states(rng), rng.randint(1, 3), rng.choice([None, None, 3, 64]))
            for uid in uids
        },
        source_parallelism=rng.randint(1, 3),
    )


def some_type(rng: random.Random, old: TypeInformation) -> TypeInformation:
    if rng.random() < 0.15:
        return rng.choice(TYPES)
    return WIDER.get(old, old) if rng.random() < 0.5 else old


def some_change(rng: random.Random, old: Program) -> Program:
    """A program that has much in common with another one."""
    operators: dict[str, Keyed] = {}
    for uid, keyed in old.operators.items():
        if rng.random() < 0.1:
            continue
        states = {
            name: (kind if rng.random() < 0.97 else "value", some_type(rng, kept))
            for name, (kind, kept) in keyed.states.items()
            if rng.random() < 0.9
        }
        if rng.random() < 0.2:
            states |= {f"new-{name}": what for name, what in some_states(rng).items()}
        groups = keyed.max_parallelism if rng.random() < 0.9 else rng.choice([None, 3, 64])
        wanted = rng.choice([keyed.parallelism, 1, 2, 5])
        parallelism = wanted if groups is None else min(wanted, groups)
        fails = rng.random() < 0.03
        operators[uid] = Keyed(
            states, parallelism, groups, OSError("no database") if fails else None
        )
    if rng.random() < 0.15 or not operators:
        operators["d"] = Keyed(some_states(rng))
    return Program(operators, rng.randint(1, 3), allow=rng.random() < 0.4)


@pytest.mark.parametrize("seed", range(60))
def test_the_restore_does_what_was_foretold(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    before = some_program(rng)
    checkpoint(before, tmp_path, inline_max=rng.choice([10, 20_000]))
    after = some_change(rng, before)
    preview = previewed(after, tmp_path)
    status, cause = restored(after, tmp_path)
    assert (status is JobStatus.FINISHED) == preview.would_restore, (preview.problems, cause)
    if not preview.would_restore:
        # A restore stops at the first problem that it meets.
        assert any(problem in cause for problem in preview.problems) or "no database" in cause
        return
    for uid, keyed in after.operators.items():
        told = verdicts(preview, uid)
        for name, (kind, type_info) in keyed.states.items():
            values = [FOUND[uid, name, key] for key in KEYS]
            empty: Any = {"value": None, "list": [], "map": {}}[kind]
            if told[name] is StateVerdict.NEW:
                assert all(value == empty for value in values)
                continue
            assert all(value != empty for value in values)
            inner = [item for value in values for item in items_of(kind, value)]
            type_info.to_arrow(inner)  # It is what the program declared.
            if told[name] is StateVerdict.KEPT:
                assert all(item == example(type_info) for item in inner)


@pytest.mark.parametrize("is_columnar", [True, False])
def test_windows_stored_without_their_ends_are_refused_as_by_the_restore(
    tmp_path: Path, is_columnar: bool
) -> None:
    """An older Weir knew open windows by their start alone."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_source(SOURCE, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    kind = Types.ROW_NAMED(["k"], [LONG])
    keyed = numbers.map(lambda value: Row(k=value), kind).key_by("k")
    windows = keyed.window(TumblingEventTimeWindows.of(Duration.of_seconds(10)))
    made = (
        windows.aggregate_batches(n=("*", "count"))
        if is_columnar
        else windows.reduce(lambda one, other: one)
    )
    made.uid("windows").sink_to(CollectSink()).uid("sink")
    with capturing() as capture:
        env.execute("program")
    job = capture.jobs[0]

    def put(subtask: SubtaskId, state: OperatorStateStore) -> None:
        if subtask.operator == "windows" and is_columnar:
            state.list_state("windows", "union").update([{"schema": "", "starts": [0]}])
        elif subtask.operator == "windows":
            descriptor = MapStateDescriptor("windows", LONG, kind)
            state.keyed.set_current_key(1)
            state.keyed.get_map_state(descriptor).put(0, Row(k=1))

    manifest = checkpoint_of(job, tmp_path, put)
    preview = preview_restore(
        job.graph, job.config, manifest,
        uri="", store=store_for(str(tmp_path)), directory=JobLayout(JOB).directory,
    )  # fmt: skip
    (problem,) = preview.problems
    assert "operator 'windows': the checkpoint holds open windows of an older version" in problem
    assert "stop the job with drain" in problem
    result = run_in_process(
        job.graph, job.config, restore_from=RestoreRequest.parse(f"{tmp_path}/{JOB}/chk-1")
    )
    assert result.status is JobStatus.FAILED
    assert problem in result.cause


def test_windows_of_a_real_checkpoint_go_on_rescaled(tmp_path: Path) -> None:
    """The tables of open windows are declared by what the operator finds in its own state."""
    records = 10_000

    def captured(
        parallelism: int,
        rows_per_second: float | None,
        *,
        adds_aggregate: bool = False,
        **options: Any,
    ) -> CapturedJob:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        env.set_max_parallelism(16)
        source = NumberSequenceSource(0, records - 1, rows_per_second=rows_per_second)
        numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
        kind = Types.ROW_NAMED(["k", "n", "ts"], [LONG, LONG, LONG])
        rows = numbers.map(lambda value: Row(k=value % 5, n=1, ts=value), kind)
        timed = rows.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts")
        )
        windows = timed.key_by("k").window(TumblingEventTimeWindows.of(Duration.of_seconds(10)))
        aggregates = {"n": ("n", "sum"), **({"last": ("n", "max")} if adds_aggregate else {})}
        windows.aggregate_batches(**aggregates).uid("windows").sink_to(CollectSink())
        with overriding(ExecutionOptions(**options)), capturing() as capture:
            env.execute("program")
        return capture.jobs[0]

    store = store_for(str(tmp_path))
    settled: list[CheckpointId] = []

    def note(event: JobEvent) -> None:
        if isinstance(event, CheckpointSettled) and event.failure is None:
            settled.append(event.checkpoint_id)

    kept: list[Manifest] = []

    def is_enough() -> bool:
        while settled and not kept:
            path = JobLayout(JOB).manifest(settled.pop(0))
            manifest = load(store.read(path), path)
            assert isinstance(manifest, Manifest)
            if any(handle.name == "table.window-0-10000" for handle in manifest.handles):
                kept.append(manifest)
        return bool(kept)

    first = captured(2, 2_000.0, interval_ms=10, storage=str(tmp_path))
    run_in_process(first.graph, first.config, job_id=JOB, emit=note, is_enough=is_enough)
    again = captured(3, None)
    preview = preview_restore(
        again.graph, again.config, kept[0],
        uri="", store=store, directory=JobLayout(JOB).directory,
    )  # fmt: skip
    assert preview.problems == ()
    told = {(s.name, s.form): s for s in operator(preview, "windows").states}
    assert told["window-0-10000", "table"].verdict is StateVerdict.KEPT
    assert told["window-0-10000", "table"].declared == told["window-0-10000", "table"].stored
    request = RestoreRequest.parse(f"{tmp_path}/{JOB}/chk-{kept[0].checkpoint_id}")
    result = run_in_process(again.graph, again.config, restore_from=request)
    assert (result.status, result.cause) == (JobStatus.FINISHED, "")
    assert sorted((row.k, row.n) for row in result.collected) == [(k, 2_000) for k in range(5)]

    other = captured(3, None, adds_aggregate=True)
    refused = preview_restore(
        other.graph, other.config, kept[0],
        uri="", store=store, directory=JobLayout(JOB).directory,
    )  # fmt: skip
    result = run_in_process(other.graph, other.config, restore_from=request)
    assert result.status is JobStatus.FAILED
    (problem,) = refused.problems
    assert "max(n)" in problem
    assert problem in result.cause


# On the command line ---------------------------------------------------------------------------

NOISE = """
import atexit, os
os.system("echo so does a child")
atexit.register(print, "at the end as well")
"""
SCRIPT = """
from weir.common import Types, WatermarkStrategy
from weir.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from weir.datastream.connectors import NumberSequenceSource
from weir.operators.sinks import CollectSink
from weir.state.descriptors import ValueStateDescriptor

print("the script prints")

class Counting(KeyedProcessFunction):
    def open(self, ctx):
        print("a function prints")
        kind = getattr(Types, ctx.get_job_parameter("type", "LONG"))()
        self.seen = ctx.get_state(ValueStateDescriptor("x", kind))
    def process_element(self, value, ctx):
        yield value

env = StreamExecutionEnvironment.get_execution_environment()
numbers = env.from_source(
    NumberSequenceSource(0, 7), WatermarkStrategy.no_watermarks(), "numbers"
).uid("numbers")
counted = numbers.key_by(lambda value: value).process(Counting()).uid("a").name("a")
counted.sink_to(CollectSink()).uid("sink")
env.execute("program")
"""


def arguments(script: Path, root: Path, **more: Any) -> Namespace:
    given: dict[str, Any] = {
        "pipeline": str(script), "restore": f"{root}/{JOB}/chk-1", "parallelism": None, "args": [],
        "allow_non_restored_state": False, "allow_pickled_state": False, "storage": None,
        "json": False,
    }  # fmt: skip
    return Namespace(**{**given, **more})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    checkpoint(Program({"a": Keyed({"x": ("value", INT)})}), tmp_path)
    path = tmp_path / "pipeline.py"
    path.write_text(SCRIPT)
    return path


def test_the_command_prints_a_table_and_a_verdict(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(arguments(script, tmp_path, parallelism=2)) == 0
    out, err = capsys.readouterr()
    assert "prints" not in out
    assert "the script prints" in err
    assert "a function prints" in err
    assert "value of INT to value of LONG; INT is widened to LONG" in out
    assert "parallelism 1 to 2" in out
    assert "goes on with 1 split" in out
    assert out.splitlines()[-1].startswith("a restore would work; 3 operators: ")


@pytest.mark.parametrize("is_over", [False, True])
def test_the_command_says_what_another_job_would_not_show(
    is_over: bool, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(Program({"a": Keyed({"x": ("value", INT)})}), tmp_path, undelivered=3)
    assert command.run(arguments(script, tmp_path, origin_is_over=is_over)) == 0
    assert "3 rows of sink sink had not been shown" in capsys.readouterr().out


def test_the_command_says_why_it_would_be_refused(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(arguments(script, tmp_path, args=[("type", "STRING")])) == 1
    out = capsys.readouterr().out
    assert "refused: operator 'a': state 'x' is value of INT" in out
    assert "a restore would be refused: 1 problem" in out.splitlines()[-1]


def test_a_document_and_nothing_else_on_standard_output(script: Path, tmp_path: Path) -> None:
    script.write_text(NOISE + SCRIPT)
    ran = subprocess.run(
        [sys.executable, "-m", "weir", "preview", str(script), "--json",
         "--restore", f"{tmp_path}/{JOB}/chk-1"],
        capture_output=True, check=False, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    preview = from_wire(CompatibilityPreview, json.loads(ran.stdout))
    assert preview.would_restore
    assert operator(preview, "a").verdict is OperatorVerdict.KEPT
    for text in ("the script prints", "so does a child", "a function prints", "at the end"):
        assert text.encode() in ran.stderr


@pytest.mark.parametrize("problem", ["missing", "damaged", "newer", "not whole"])
def test_a_checkpoint_that_cannot_be_used_is_a_refusal(
    problem: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / JOB / "chk-1" / "manifest"
    whole = path.read_bytes()
    match problem:
        case "missing":
            path.unlink()
        case "damaged":
            path.write_bytes(whole.replace(b"program", b"programs"))
        case "newer":
            path.write_bytes(whole.replace(b'"version": 2', b'"version": 99'))
        case _:
            checkpoint(Program({"a": Keyed({"x": ("value", INT)})}), tmp_path, inline_max=10)
            next((tmp_path / JOB / "chk-1" / "1").iterdir()).unlink()
    assert command.run(arguments(script, tmp_path, json=True)) == 1
    preview = from_wire(CompatibilityPreview, json.loads(capsys.readouterr().out))
    assert not preview.would_restore
    said = {"missing": "no checkpoint 1", "newer": "version 99", "not whole": "it is missing"}
    assert said.get(problem, problem) in preview.problems[0]


def test_a_script_without_a_job_or_with_an_error_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, raising = tmp_path / "empty.py", tmp_path / "raising.py"
    empty.write_text("print('nothing')\n")
    raising.write_text("raise ValueError('broken')\n")
    with pytest.raises(UserError, match="without running a job"):
        command.run(arguments(empty, tmp_path))
    assert command.run(arguments(raising, tmp_path)) == command.WRONG_USE
    out, err = capsys.readouterr()
    assert out == ""
    assert "broken" in err


def test_a_script_gets_its_arguments_and_may_end_itself_after_its_job(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begins, ends = "import sys\nprint('told', sys.argv[1:])\n", "sys.exit('no result')\n"
    script.write_text(begins + SCRIPT + ends)
    told = arguments(script, tmp_path, script_arguments=["--input", "x"])
    assert command.run(told) == 0
    assert "told ['--input', 'x']" in capsys.readouterr().err
    script.write_text("import sys\nsys.exit(7)\n")
    with pytest.raises(SystemExit) as raised:
        command.run(arguments(script, tmp_path))
    assert raised.value.code == 7


def test_the_job_of_the_checkpoint_is_found_among_several() -> None:
    from weir.tools.restore_preview import choose_job

    job = Program({"a": Keyed()}).captured()
    other = CapturedJob(job.graph, JobConfig(name="other"))
    manifest = Manifest(
        job_id=JOB, job_name="program", checkpoint_id=ONE, parent_id=None,
        kind=CheckpointKind.SAVEPOINT, attempt=AttemptNumber(1), triggered_ms=0, completed_ms=1,
        versions=Versions("1", "3.11", "20"),
        operators=(OperatorSummary(OperatorId("a"), "a", 1, 128),), acks=(),
    )  # fmt: skip
    assert choose_job([other, job], manifest) is job
    with pytest.raises(UserError, match="several jobs"):
        choose_job([other, other], manifest)


# Records under way -----------------------------------------------------------------------------


def unaligned_checkpoint(program: Program, root: Path, to: str, *values: int) -> None:
    """The program's checkpoint with these values under way to an operator's first subtask."""
    manifest = checkpoint(program, root)
    graph = program.captured().graph
    (exchange,) = [e for e in exchanges_of(graph) if e.target == to]
    batch = Batch.of_rows(list(values))
    part = ChannelPart(
        input_name(exchange, 0),
        exchange,
        [Records(batch, len(batch), batch.size)],
        frame_bytes_max=1 << 20,
        pickles=False,
    )
    first = SubtaskId(OperatorId(to), 0)
    writer = StoredSnapshotWriter(
        store_for(str(root)), JOB, AttemptNumber(1), ONE, first,
        inline_max=None, cancelled=lambda: False,
    )  # fmt: skip
    acks = tuple(
        replace(ack, handles=(*ack.handles, *part.write(writer))) if ack.subtask == first else ack
        for ack in manifest.acks
    )
    store_for(str(root)).put(JobLayout(JOB).manifest(ONE), dump(replace(manifest, acks=acks)))


ONE_KEYED = Program({"one": Keyed({"x": ("value", LONG)})})


@pytest.mark.parametrize("parallelism", [1, 3])
def test_records_under_way_restore_at_any_parallelism(parallelism: int, tmp_path: Path) -> None:
    """Each is given to the subtask of its key, whose state would refuse it elsewhere."""
    unaligned_checkpoint(ONE_KEYED, tmp_path, "one", *range(100, 120))
    after = Program({"one": Keyed({"x": ("value", LONG)}, parallelism=parallelism)})
    assert previewed(after, tmp_path).would_restore
    assert restored(after, tmp_path) == (JobStatus.FINISHED, "")
    stored = {("one", "x", key): 7 for key in KEYS}
    assert {**stored, **{("one", "x", key): None for key in range(100, 120)}} == FOUND


def test_records_under_way_on_an_exchange_that_is_gone_are_foretold_and_refused(
    tmp_path: Path,
) -> None:
    unaligned_checkpoint(ONE_KEYED, tmp_path, "one", 1, 2)
    between = Program({"new": Keyed(), "one": Keyed({"x": ("value", LONG)})})
    preview = previewed(between, tmp_path)
    status, cause = restored(between, tmp_path)
    assert not preview.would_restore
    assert status is JobStatus.FAILED
    (problem,) = preview.problems
    assert "records under way on an exchange which the pipeline does not have" in problem
    assert problem in cause


def test_records_under_way_that_are_damaged_fail_the_restore(tmp_path: Path) -> None:
    """The bytes are what their handle says, and still no records: a hostile or broken writer's."""
    unaligned_checkpoint(ONE_KEYED, tmp_path, "one", 1, 2)
    path = JobLayout(JOB).manifest(ONE)
    manifest = load(store_for(str(tmp_path)).read(path), path)
    assert isinstance(manifest, Manifest)

    def cut(handle: StateHandle) -> StateHandle:
        if handle.kind != "channel":
            return handle
        data = (handle.inline or b"")[:-7]
        return replace(handle, inline=data, size=len(data), checksum=checksum_of(data))

    acks = tuple(replace(ack, handles=tuple(map(cut, ack.handles))) for ack in manifest.acks)
    store_for(str(tmp_path)).put(path, dump(replace(manifest, acks=acks)))
    status, cause = restored(ONE_KEYED, tmp_path)
    assert status is JobStatus.FAILED
    assert "records under way in in/numbers>one.0/0/0 cannot be restored: it is cut short" in cause
