import json
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from weir.common import Configuration, Duration, Row, Types, WatermarkStrategy
from weir.config import CheckpointConfig, JobConfig, RestartConfig, RestartStrategyKind, Retention
from weir.datastream import (
    CheckpointingMode,
    DataStream,
    ExecutionOptions,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
)
from weir.datastream.execution import CapturedJob, capturing, overriding
from weir.datastream.options import OPTIONS
from weir.errors import ConfigError, GraphError
from weir.graph.logical import Chaining, JobGraph, Partitioning
from weir.local.cluster import run_in_process
from weir.operators.sources import CollectionSource
from weir.operators.sources.split_time import SourceWatermarkFactory
from weir.operators.watermarks import WatermarkFactory

MINUTE = TumblingEventTimeWindows.of(60_000)
BY_COLUMN = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts")


def environment(parallelism: int = 1) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def words(env: StreamExecutionEnvironment) -> DataStream:
    text = "to be or not to be"
    return env.from_collection([Row(word=w, n=1, ts=i) for i, w in enumerate(text.split())])


def shape(graph: JobGraph) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.partitioning.value, edge.target) for edge in graph.edges]


def captured(
    build: Callable[[StreamExecutionEnvironment], Any], parallelism: int = 1
) -> CapturedJob:
    env = environment(parallelism)
    build(env)
    with capturing() as capture:
        env.execute("job")
    return capture.jobs[0]


def results(build: Callable[[StreamExecutionEnvironment], DataStream], parallelism: int = 2) -> Any:
    """The results of running the pipeline, in any order."""
    with capturing() as capture:
        build(environment(parallelism)).execute_and_collect()
    (job,) = capture.jobs
    # What runs was pickled, as on its way to a slot.
    result = run_in_process(cloudpickle.loads(cloudpickle.dumps(job.graph)), job.config)
    assert (result.status, result.cause) == ("finished", "")
    return sorted(map(tuple, result.collected))


# What the pipelines do -------------------------------------------------------------------------


def test_words_are_counted_per_record() -> None:
    counted = results(
        lambda env: words(env).map(lambda row: (row.word, 1)).key_by(lambda pair: pair[0]).sum(1)
    )
    assert counted == [("be", 1), ("be", 2), ("not", 1), ("or", 1), ("to", 1), ("to", 2)]


def test_words_are_counted_in_columns_one_row_per_key_and_slice() -> None:
    counted = results(lambda env: words(env).key_by("word").count())
    assert counted == [("be", 2), ("not", 1), ("or", 1), ("to", 2)]


def test_windows_give_the_same_per_record_and_in_columns() -> None:
    assigner = TumblingEventTimeWindows.of(Duration.of_millis(3))

    def keyed(env: StreamExecutionEnvironment, key: Any) -> Any:
        return words(env).assign_timestamps_and_watermarks(BY_COLUMN).key_by(key).window(assigner)

    in_columns = results(lambda env: keyed(env, "word").aggregate_batches(n=("n", "sum")))
    per_record = results(
        lambda env: keyed(env, lambda row: row.word).reduce(
            lambda one, other: Row(word=one.word, n=one.n + other.n, ts=other.ts)
        )
    )
    assert in_columns == [
        ("be", 0, 3, 1),
        ("be", 3, 6, 1),
        ("not", 3, 6, 1),
        ("or", 0, 3, 1),
        ("to", 0, 3, 1),
        ("to", 3, 6, 1),
    ]
    assert [(word, n) for word, n, _ in per_record] == [(row[0], row[-1]) for row in in_columns]


def test_side_outputs_and_unions_bring_all_records_together() -> None:
    short = OutputTag("short")

    class Splitting(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield (short, (value.word,)) if len(value.word) == 2 else (value.word.upper(),)

    def build(env: StreamExecutionEnvironment) -> DataStream:
        split = words(env).process(Splitting())
        return split.union(split.get_side_output(short))

    assert results(build) == [("NOT",), ("be",), ("be",), ("or",), ("to",), ("to",)]


# The graph -------------------------------------------------------------------------------------


def test_uids_follow_from_names_and_order_and_explicit_ones_stay() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = words(env).map(str).uid("map-2").map(str).map(str).name("Third!")
        stream.print()

    uids = [op.uid for op in captured(build).graph.operators]
    assert uids == ["collection-source-1", "map-2", "map-1", "third-1", "print-to-std-out-1"]
    assert [op.uid for op in captured(build).graph.operators] == uids


def test_an_explicit_uid_used_twice_is_refused() -> None:
    with pytest.raises(GraphError, match="uid used twice: x"):
        captured(lambda env: words(env).map(str).uid("x").map(str).uid("x"))


def test_equal_parallelism_is_joined_forward_and_another_one_round_robin() -> None:
    job = captured(lambda env: words(env).map(str).map(str).set_parallelism(3).map(str), 2)
    assert [p for _, p, _ in shape(job.graph)] == ["rebalance", "rebalance", "rebalance"]
    job = captured(lambda env: words(env).map(str).map(str), 1)
    assert [p for _, p, _ in shape(job.graph)] == ["forward", "forward"]


def test_each_way_of_partitioning_has_its_edge() -> None:
    env = environment(2)
    stream = words(env).map(str)
    for parted in (
        stream.rebalance(),
        stream.rescale(),
        stream.shuffle(),
        stream.broadcast(),
        stream.global_(),
        stream.forward(),
        stream.partition_custom(lambda key, count: key % count, len),
    ):
        parted.map(str)
    edges = env.get_job_graph().edges[1:]
    assert [edge.partitioning for edge in edges] == [
        Partitioning.REBALANCE,
        Partitioning.RESCALE,
        Partitioning.SHUFFLE,
        Partitioning.BROADCAST,
        Partitioning.GLOBAL,
        Partitioning.FORWARD,
        Partitioning.CUSTOM,
    ]
    assert edges[-1].selector.partition("abc", 2) == 1


def test_a_column_aggregate_is_combined_beside_its_input_before_the_exchange() -> None:
    job = captured(lambda env: words(env).map(str).key_by("word").sum("n").uid("total"), 2)
    assert shape(job.graph)[1:] == [
        ("map-1", "forward", "total-combine"),
        ("total-combine", "hash", "total"),
    ]
    assert job.graph.operator(job.graph.edges[-1].target).keyed
    assert job.graph.edges[-1].selector.column_names == ("word",)


def test_a_window_that_diverts_late_rows_is_not_combined_before_the_exchange() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        windowed = words(env).key_by("word").window(TumblingEventTimeWindows.of(5))
        windowed.side_output_late_data(OutputTag("late")).aggregate_batches(n=("*", "count"))

    assert shape(captured(build).graph) == [("collection-source-1", "hash", "window-aggregate-1")]


def test_watermarks_of_a_source_run_beside_it_and_its_uid_is_the_sources() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        source = CollectionSource([Row(word="to", ts=1)])
        env.from_source(source, BY_COLUMN, "Events").uid("events").set_parallelism(3).map(str)

    graph = captured(build).graph
    assert ("events", "forward", "events-watermarks") in shape(graph)
    assert [op.parallelism for op in graph.operators if op.uid.startswith("events")] == [3, 3]


def test_a_source_of_splits_tells_event_time_itself_and_any_other_has_it_told_behind_it() -> None:
    class Own(CollectionSource):
        def create_operator_factory(self, parallelism: int) -> Any:
            return super().create_operator_factory(parallelism)

    def factory(source: Any) -> Any:
        def build(env: StreamExecutionEnvironment) -> None:
            env.from_source(source, BY_COLUMN, "Events").uid("events").map(str)

        (timing,) = [op for op in captured(build).graph.operators if op.uid == "events-watermarks"]
        return timing.factory

    rows = [Row(word="to", ts=1)]
    assert isinstance(factory(CollectionSource(rows)), SourceWatermarkFactory)
    assert isinstance(factory(Own(rows)), WatermarkFactory)


def test_alignment_is_refused_where_no_splits_can_be_paused() -> None:
    aligned = BY_COLUMN.with_watermark_alignment("group", 1)
    with pytest.raises(GraphError, match="leave with_watermark_alignment out"):
        words(environment()).assign_timestamps_and_watermarks(aligned)


def test_chaining_is_cut_where_asked() -> None:
    env = environment()
    words(env).map(str).start_new_chain().map(str).disable_chaining().map(str)
    chaining = [op.chaining for op in env.get_job_graph().operators]
    assert chaining == [Chaining.ALWAYS, Chaining.HEAD, Chaining.NEVER, Chaining.ALWAYS]
    env.disable_operator_chaining()
    assert {op.chaining for op in env.get_job_graph().operators} == {Chaining.NEVER}


def test_tuning_a_stream_without_an_operator_of_its_own_is_refused_with_advice() -> None:
    tunings: list[Callable[[DataStream], DataStream]] = [
        lambda stream: stream.key_by("word").uid("x"),
        lambda stream: stream.union(stream).name("x"),
        lambda stream: stream.rebalance().set_parallelism(2),
    ]
    for tune in tunings:
        with pytest.raises(GraphError, match="call it right after the operator"):
            tune(words(environment()))


def test_keyed_functions_without_a_key_are_refused_when_the_graph_is_built() -> None:
    class Keyed(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None: ...

    with pytest.raises(GraphError, match="call key_by before process"):
        words(environment()).process(Keyed())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda s: s.map(5),
        lambda s: s.process(str),
        lambda s: s.process_batches(str),
        lambda s: s.key_by(5),
        lambda s: s.key_by([]),
        lambda s: s.key_by(["a", "a"]),
        lambda s: s.key_by("a", key_type=Types.LONG()),
        lambda s: s.key_by(str).process(str),
        lambda s: s.key_by(str).aggregate_batches(n=("*", "count")),
        lambda s: s.key_by("word").aggregate_batches(),
        lambda s: s.key_by(str).sum(1.5),
        lambda s: s.key_by(str).window(5),
        lambda s: s.key_by(str).window(TumblingEventTimeWindows.of(5)).allowed_lateness(-1),
        lambda s: s.key_by(str).window(TumblingEventTimeWindows.of(5)).apply(str),
        lambda s: s.key_by(str).window(TumblingEventTimeWindows.of(5)).aggregate(str),
        lambda s: s.map(str).set_parallelism(0),
        lambda s: s.sink_to(5),
        lambda s: s.union(words(environment())),
        lambda s: s.partition_custom(5, str),
        lambda s: s.get_execution_environment().from_source(5, BY_COLUMN, "x"),
        lambda s: s.get_execution_environment().execute(5),
    ],
)
def test_misuse_is_refused_where_it_is_written(misuse: Callable[[DataStream], Any]) -> None:
    with pytest.raises(GraphError):
        misuse(words(environment()))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda s: s.key_by("n").sum("n"),
            r'aggregate n is called like a key column.* aggregate_batches\(result=\("n", "sum"\)\)',
        ),
        (lambda s: s.key_by("count").count(), r'called like a key column.*\("\*", "count"\)'),
        (lambda s: s.key_by(["word", "n"]).aggregate_batches(n=("ts", "max")), "like a key column"),
        (
            lambda s: s.key_by("word").window(MINUTE).aggregate_batches(window_end=("n", "max")),
            "aggregate window_end is called like a bound of the window",
        ),
        (
            lambda s: s.key_by("window_start").window(MINUTE).aggregate_batches(n=("n", "sum")),
            "key column window_start is called like a bound of the window",
        ),
    ],
)
def test_two_columns_of_a_result_with_one_name_are_refused(
    build: Callable[[DataStream], Any], says: str
) -> None:
    with pytest.raises(GraphError, match=says):
        build(words(environment()))


def test_parallelism_above_max_parallelism_is_refused() -> None:
    env = environment().set_max_parallelism(4)
    words(env).map(str).set_parallelism(5)
    with pytest.raises(GraphError, match=r"'Map' has parallelism 5, above its max parallelism 4"):
        env.get_job_graph()
    with pytest.raises(ConfigError, match="max parallelism is 4"):
        env.set_parallelism(5)


def test_an_empty_pipeline_says_how_to_start_one() -> None:
    with pytest.raises(GraphError, match="no source"):
        environment().execute()


def test_a_graph_survives_the_way_to_a_slot() -> None:
    class Shout(MapFunction):
        def map(self, value: Any) -> Any:
            return str(value).upper()

    graph = captured(lambda env: words(env).map(Shout()).key_by(len).reduce(max).print()).graph
    copied = cloudpickle.loads(cloudpickle.dumps(graph))
    assert shape(copied) == shape(graph)
    assert [type(op.factory()) for op in copied.operators] == [
        type(op.factory()) for op in graph.operators
    ]


def test_the_plan_is_the_graph_as_json() -> None:
    env = environment(2)
    words(env).key_by("word").count().print()
    nodes = json.loads(env.get_execution_plan())["nodes"]
    assert [(n["id"], n["pact"], n["parallelism"]) for n in nodes] == [
        ("collection-source-1", "Data Source", 1),
        ("count-1-combine", "Operator", 1),
        ("count-1", "Operator", 2),
        ("print-to-std-out-1", "Data Sink", 2),
    ]
    assert nodes[2]["predecessors"] == [{"id": "count-1-combine", "ship_strategy": "HASH"}]


# Settings --------------------------------------------------------------------------------------


def test_settings_reach_the_job() -> None:
    env = environment(2).set_max_parallelism(64).enable_checkpointing(500)
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_checkpoint_storage("/tmp/x").set_min_pause_between_checkpoints(50)
    checkpoints.set_aligned_checkpoint_timeout(Duration.of_seconds(3))
    checkpoints.enable_unaligned_checkpoints()
    env.set_restart_strategy(RestartConfig(kind=RestartStrategyKind.NONE))
    words(env).print()
    with capturing() as capture:
        env.execute("mine")
    assert capture.jobs[0].config == JobConfig(
        name="mine",
        parallelism=2,
        max_parallelism=64,
        checkpoints=CheckpointConfig(
            interval_ms=500, storage="/tmp/x", min_pause_ms=50, alignment_timeout_ms=3_000
        ),
        restart=RestartConfig(kind=RestartStrategyKind.NONE),
    )


def test_options_of_the_scripts_starter_lie_over_its_settings() -> None:
    env = environment(1).enable_checkpointing(500)
    words(env).map(str).print()
    options = ExecutionOptions(
        parallelism=3,
        interval_ms=20,
        mode=CheckpointingMode.AT_LEAST_ONCE,
        timeout_ms=5_000,
        min_pause_ms=0,
        retained_max=7,
        restart={"kind": RestartStrategyKind.FIXED_DELAY, "attempts_max": 4},
        storage="/tmp/y",
        parameters={"day": "monday"},
    )
    assert env.get_job_parameter("day", "?") == "?"
    with capturing() as capture, overriding(options):
        assert env.get_job_parameter("day", "?") == "monday"
        env.execute()
    (job,) = capture.jobs
    assert job.config.parallelism == 3
    assert job.config.checkpoints == CheckpointConfig(
        interval_ms=20,
        mode=CheckpointingMode.AT_LEAST_ONCE,
        timeout_ms=5_000,
        retained_max=7,
        storage="/tmp/y",
    )
    assert job.config.restart == RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=4)
    assert job.config.parameters == {"day": "monday"}
    assert [op.parallelism for op in job.graph.operators] == [1, 3, 3]


def test_a_second_pipeline_of_the_same_environment_starts_empty() -> None:
    env = environment()
    with capturing() as capture:
        words(env).print()
        env.execute("one")
        words(env).print()
        env.execute("two")
    one, two = (job.graph for job in capture.jobs)
    assert [op.uid for op in one.operators] == [op.uid for op in two.operators]


def test_flink_keys_set_what_they_name() -> None:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.interval", "10 s")
    configuration.set_string("execution.checkpointing.mode", "AT_LEAST_ONCE")
    configuration.set_string("execution.checkpointing.unaligned.enabled", "true")
    configuration.set_string("execution.checkpointing.aligned-checkpoint-timeout", "2 min")
    configuration.set_string(
        "execution.checkpointing.externalized-checkpoint-retention", "DELETE_ON_CANCELLATION"
    )
    configuration.set_string("execution.checkpointing.data-inline-threshold", "64 kb")
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_integer("restart-strategy.fixed-delay.attempts", 7)
    configuration.set_integer("parallelism.default", 2)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    words(env).print()
    with capturing() as capture:
        env.execute()
    config = capture.jobs[0].config
    assert config.checkpoints == CheckpointConfig(
        interval_ms=10_000,
        mode=CheckpointingMode.AT_LEAST_ONCE,
        alignment_timeout_ms=120_000,
        retention=Retention.DELETE_ON_CANCELLATION,
        inline_max_bytes=65_536,
    )
    assert (config.restart.kind, config.restart.attempts_max) == ("fixed_delay", 7)
    assert config.parallelism == 2


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean execution\.checkpointing\.interval"):
        environment().configure(Configuration({"execution.checkpointing.intervall": "1 s"}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("execution.checkpointing.interval", "soon"),
        ("execution.checkpointing.interval", "5 ms"),
        ("execution.checkpointing.unaligned.enabled", "maybe"),
        ("execution.checkpointing.mode", "twice"),
        ("parallelism.default", "0"),
    ],
)
def test_a_value_that_cannot_be_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        environment().configure(Configuration({key: value}))


def test_every_key_names_a_setting_that_exists() -> None:
    sections = {"checkpoints": CheckpointConfig(), "restart": RestartConfig(), "job": JobConfig()}
    for option in OPTIONS.values():
        if option.section in sections:
            assert hasattr(sections[option.section], option.field)


def test_a_setter_refuses_what_contradicts_the_others() -> None:
    checkpoints = environment().get_checkpoint_config().set_max_concurrent_checkpoints(2)
    with pytest.raises(ConfigError, match="unaligned checkpoints need concurrent_max=1"):
        checkpoints.enable_unaligned_checkpoints()
    assert not checkpoints.is_unaligned_checkpoints_enabled()


# Bad records -----------------------------------------------------------------------------------

BAD = OutputTag("bad")


class Halving(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield 10 // value


@pytest.mark.parametrize(
    "method",
    [
        lambda numbers: numbers.map(lambda x: 10 // x),
        lambda numbers: numbers.flat_map(lambda x: [10 // x]),
        lambda numbers: numbers.process(Halving()),
    ],
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_bad_records_are_left_out_or_go_to_a_side_output(
    method: Callable[[DataStream], DataStream], parallelism: int
) -> None:
    def build(env: StreamExecutionEnvironment) -> DataStream:
        numbers = env.from_collection([5, 0, 2], Types.INT()).rebalance()
        made = method(numbers).on_error(side_output=BAD).uid("halves")
        bad = made.get_side_output(BAD).map(lambda bad: (*bad[:2], *bad[3:5]))
        return made.map(lambda x: (x,)).union(bad)

    bad = (0, "ZeroDivisionError", "halves", None)
    assert results(build, parallelism) == [bad, (2,), (5,)]


def test_bad_records_of_a_declared_type_are_columns_with_the_record() -> None:
    def build(env: StreamExecutionEnvironment) -> DataStream:
        numbers = env.from_collection([5, 0], Types.INT())
        made = numbers.filter(lambda x: 10 // x > 1).on_error(side_output=BAD)
        return made.get_side_output(BAD).map_batches(lambda batch: batch.select([0, 1]))

    assert results(build) == [(0, "ZeroDivisionError")]


def policies(build: Callable[[StreamExecutionEnvironment], Any]) -> dict[str, Any]:
    by_name = {op.name: op.on_error for op in captured(build).graph.operators}
    return {name: policy and (policy.action, policy.limit) for name, policy in by_name.items()}


def test_the_jobs_policy_is_that_of_operators_per_record_without_their_own() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.set_on_error("skip", limit=7)
        numbers = env.from_collection([1])
        numbers.map(lambda x: x).name("a").print()
        numbers.map(lambda x: x).name("b").on_error("fail").print()
        numbers.filter(bool).name("c").on_error("skip").print()
        numbers.key_by(lambda x: x).reduce(max).name("d").print()

    made = policies(build)
    assert [made[name] for name in "abcd"] == [("skip", 7), None, ("skip", None), None]


def test_the_jobs_policy_may_be_configured() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.configure(Configuration({"weir.on-error": "skip", "weir.on-error.limit": "3"}))
        env.from_collection([1]).map(lambda x: x).name("a").print()

    assert policies(build)["a"] == ("skip", 3)


@pytest.mark.parametrize("values", [{"weir.on-error": "skp"}, {"weir.on-error.limit": "3"}])
def test_a_policy_that_cannot_be_is_refused_with_its_key(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"weir\.on-error"):
        environment().configure(Configuration(values))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "takes 'fail', 'skip' or side_output"),
        ({"action": "skp"}, "not 'skp'"),
        ({"action": "skip", "side_output": BAD}, "give one of them"),
        ({"side_output": "bad"}, "is an OutputTag"),
        ({"side_output": OutputTag("bad", Types.INT())}, "leave it out"),
        ({"action": "skip", "limit": 0}, "at least 1"),
        ({"action": "skip", "limit": True}, "at least 1"),
        ({"action": "fail", "limit": 3}, "has no limit"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(GraphError, match=says):
        words(environment()).map(lambda x: x).on_error(**arguments)


@pytest.mark.parametrize(
    "method",
    [
        lambda stream: stream,
        lambda stream: stream.map_batches(lambda batch: batch),
        lambda stream: stream.filter_batches(lambda batch: batch),
        lambda stream: stream.key_by("word").count(),
        lambda stream: stream.key_by("word").reduce(max),
        lambda stream: stream.assign_timestamps_and_watermarks(BY_COLUMN),
    ],
)
def test_an_operator_that_cannot_tell_records_apart_has_no_policy(
    method: Callable[[DataStream], DataStream],
) -> None:
    with pytest.raises(GraphError, match="process it per record, or let the function sort"):
        method(words(environment())).on_error("skip")


def test_a_policy_after_key_by_is_refused_as_other_settings_are() -> None:
    with pytest.raises(GraphError, match="call it right after the operator"):
        words(environment()).key_by("word").on_error("skip")
