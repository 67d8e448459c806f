"""``StreamExecutionEnvironment``: the settings, sources and execution of a pipeline.

The environment collects the operators as streams are built from it. ``execute`` turns the new ones
into a job graph, overrides the settings with the options that the script was started with, and runs
it. However that ends, they are not new any more: the next ``execute`` runs the sinks that are
attached from then on, with all that leads to them.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from weir.common.configuration import Configuration
from weir.common.flink_keys import needs_nothing
from weir.common.missing_names import MissingNames
from weir.common.stderr_log import log_to_stderr
from weir.common.typeinfo import TypeInformation
from weir.common.watermark import WatermarkStrategy
from weir.config import CheckpointConfig as CheckpointSettings
from weir.config import CheckpointingMode, JobConfig, RestartConfig
from weir.datastream import execution
from weir.datastream.checkpoint_config import CheckpointConfig
from weir.datastream.checks.arguments import check_parallelism, check_text, check_type
from weir.datastream.checks.inputs import check_source, elements_of
from weir.datastream.checks.remarks import remarks
from weir.datastream.checks.uncaught import fold_tracebacks
from weir.datastream.closeable_iterator import CloseableIterator
from weir.datastream.execution import ExecutionOptions, JobExecutionResult
from weir.datastream.execution_config import ExecutionConfig
from weir.datastream.execution_mode import RuntimeExecutionMode
from weir.datastream.options import read_options
from weir.datastream.state_backend import StateBackend
from weir.datastream.stream import DataStream
from weir.datastream.transformation import (
    End,
    OperatorFactory,
    Transformation,
    build_graph,
    leading_to,
    timed_use,
)
from weir.errors import ConfigError, GraphError
from weir.graph.logical import Edge, JobGraph, Operator
from weir.operators.bad_records import FAIL, make_policy
from weir.operators.sinks.pending_commits import Sink
from weir.operators.sources import CollectionSource
from weir.operators.sources.split_source import Source, tells_event_time
from weir.operators.sources.split_time import SourceWatermarkFactory
from weir.operators.watermarks import WatermarkFactory
from weir.secrets import job_secrets
from weir.state.backends.choice import checked

logger = logging.getLogger(__name__)

DEFAULT_JOB_NAME = "Weir Streaming Job"


class StreamExecutionEnvironment(MissingNames):
    """The environment of one pipeline after another: settings, sources, ``execute``."""

    def __init__(self, configuration: Configuration | None = None) -> None:
        fold_tracebacks()
        self._job = JobConfig(name=DEFAULT_JOB_NAME)
        self._checkpoints = CheckpointConfig(CheckpointSettings())
        self._execution = ExecutionConfig()
        self._restart = RestartConfig()
        self._restore: str | None = None
        self._claims = False
        self._chaining = True
        self._on_error = FAIL
        self._new: list[Transformation] = []  # Added since the last job.
        self._added = 0
        if configuration is not None:
            self.configure(configuration)

    def __reduce__(self) -> Any:
        raise GraphError(
            "an environment cannot be used inside a function: functions get records while the job "
            "runs, and the environment builds it before"
        )

    @classmethod
    def get_execution_environment(cls, configuration: Configuration | None = None) -> Self:
        """A new environment; the command that starts the script decides where its job runs."""
        return cls(configuration)

    # Settings ---------------------------------------------------------------------------------

    def get_config(self) -> ExecutionConfig:
        """The execution settings, which the caller may change."""
        return self._execution

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of operators without a parallelism of their own.

        Raises:
            ConfigError: It is less than 1, or more than the max parallelism.
        """
        check_parallelism(parallelism, "set_parallelism")
        self._job = replace(self._job, parallelism=parallelism)
        return self

    def get_parallelism(self) -> int:
        """The parallelism of operators that set none themselves."""
        return self._job.parallelism

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups: the highest parallelism the state can ever have.

        Raises:
            ConfigError: It is less than the parallelism, or more than 32768.
        """
        check_parallelism(max_parallelism, "set_max_parallelism")
        self._job = replace(self._job, max_parallelism=max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """The number of key groups; -1 where it is derived from the parallelism."""
        return -1 if self._job.max_parallelism is None else self._job.max_parallelism

    def enable_checkpointing(
        self, interval: int, mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    ) -> Self:
        """Take a checkpoint every ``interval`` milliseconds.

        Raises:
            ConfigError: The interval is less than 10 ms.
        """
        self._checkpoints.change(interval_ms=interval, mode=mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The checkpoint settings, which the caller may change."""
        return self._checkpoints

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between triggers; -1 while checkpointing is off."""
        return self._checkpoints.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """The guarantee after a restore: exactly once or at least once."""
        return self._checkpoints.get_checkpointing_mode()

    def set_restart_strategy(self, restart: RestartConfig) -> Self:
        """Set when and how often a failed job is restarted.

        PyFlink takes a ``RestartStrategies`` configuration here, Weir a ``RestartConfig``.
        """
        if not isinstance(restart, RestartConfig):
            raise ConfigError(
                f"set_restart_strategy takes a RestartConfig, not {restart!r}: write "
                "RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=3), say"
            )
        self._restart = restart
        return self

    def set_state_backend(self, state_backend: StateBackend) -> Self:
        """Set the place of state per key: ``HashMapStateBackend``, ``EmbeddedRocksDBStateBackend``.

        Raises:
            ConfigError: It is no such backend, or its package is not installed.
        """
        if not isinstance(state_backend, StateBackend):
            raise ConfigError(
                f"set_state_backend takes a HashMapStateBackend() or an "
                f"EmbeddedRocksDBStateBackend(), not {state_backend!r}"
            )
        self._job = replace(self._job, state=checked(state_backend.applied_to(self._job.state)))
        return self

    def get_state_backend(self) -> StateBackend:
        """The state backend."""
        return StateBackend.configured(self._job.state)

    def set_on_error(self, action: Literal["fail", "skip"], *, limit: int | None = None) -> Self:
        """Set the treatment of bad records, on which a function raises; not in PyFlink.

        It applies to ``map``, ``flat_map``, ``filter`` and ``process`` that set none themselves
        (``DataStream.on_error``); errors of all other operators fail the job. ``limit`` is for each
        subtask of each operator.

        Raises:
            GraphError: The arguments contradict each other.
        """
        self._on_error = make_policy(action, None, limit)
        return self

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> Self:
        """Accept the mode ``STREAMING``, the only one.

        Raises:
            ConfigError: For any other; the message says what differs.
        """
        needs_nothing("execution.runtime-mode", execution_mode)
        return self

    def disable_operator_chaining(self) -> Self:
        """Give every operator subtasks of its own, instead of chaining operators."""
        self._chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Whether operators may be chained, that is, share subtasks."""
        return self._chaining

    def configure(self, configuration: Configuration | Mapping[str, Any]) -> Self:
        """Apply settings by Flink's keys; PyFlink takes no plain mapping.

        Raises:
            ConfigError: Weir does not have a key (the message says what it has instead, or names
                the nearest one), or a value does not fit.
        """
        if not isinstance(configuration, Configuration | Mapping):
            raise ConfigError(f"configure takes a Configuration, not {configuration!r}")
        read = read_options(Configuration(configuration).to_dict())
        channels = replace(self._job.channels, **read.get("channels", {}))
        state = checked(replace(self._job.state, **read.get("state", {})))
        self._job = replace(self._job, channels=channels, state=state, **read.get("job", {}))
        self._restart = replace(self._restart, **read.get("restart", {}))
        self._checkpoints.change(**read.get("checkpoints", {}))
        unaligned = read.get("unaligned", {})
        if "timeout_ms" in unaligned:
            self._checkpoints.set_aligned_checkpoint_timeout(unaligned["timeout_ms"])
        if "enabled" in unaligned:
            self._checkpoints.enable_unaligned_checkpoints(unaligned["enabled"])
        if on_error := read.get("on_error", {}):
            self._configure_on_error(**on_error)
        options = read.get("options", {})
        self._restore = options.get("restore", self._restore)
        self._claims = options.get("claims", self._claims)
        self._chaining = options.get("chaining", self._chaining)
        if "object_reuse" in options:
            reuse = options["object_reuse"]
            (
                self._execution.enable_object_reuse
                if reuse
                else self._execution.disable_object_reuse
            )()
        return self

    def _configure_on_error(self, action: str | None = None, limit: int | None = None) -> None:
        try:
            self._on_error = make_policy(
                action or self._on_error.action, None, limit or self._on_error.limit
            )
        except GraphError as error:
            raise ConfigError(f"weir.on-error: {error}") from error

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """The pipeline's argument ``key``, as given with ``--arg key=value``, or the default.

        PyFlink has this method on ``RuntimeContext`` only.
        """
        given = execution.current_options().parameters
        return given.get(key, self._job.parameters.get(key, default_value))

    def get_secret(self, name: str) -> str:
        """The value of one of the job's secrets, for building the pipeline; not in PyFlink.

        A function obtains it with ``RuntimeContext.get_secret`` instead: a value that a function
        holds when it is created travels to the slots with the pipeline's code.

        Raises:
            ConfigError: The job has no such secret; the message says how to set it.
        """
        return job_secrets.get_secret(name)

    # Sources ----------------------------------------------------------------------------------

    def from_collection(
        self, collection: Iterable[Any], type_info: TypeInformation | None = None
    ) -> DataStream:
        """A stream of the elements, which one subtask emits in order."""
        check_type(type_info, "type_info")
        source = CollectionSource(elements_of(collection), type_info)
        stream = self.from_source(source, WatermarkStrategy.no_watermarks(), "Collection Source")
        return stream.set_parallelism(1)

    def from_source(
        self,
        source: Any,
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: TypeInformation | None = None,
    ) -> DataStream:
        """A stream of a source's records, with event time by ``watermark_strategy``.

        ``source`` is an object with ``create_operator_factory(parallelism)``, such as those of
        ``weir.datastream.connectors``; it knows its own types. A source made of splits applies the
        strategy to each split, and its event time is that of the split furthest behind.

        Raises:
            GraphError: ``source`` is no source, or ``type_info`` is given.
        """
        check_source(source, watermark_strategy)
        if type_info is not None:
            raise GraphError("give the type to the source itself, not to from_source")
        is_timed = watermark_strategy != WatermarkStrategy.no_watermarks()
        make_watermarks: OperatorFactory = SourceWatermarkFactory()
        if not tells_event_time(source):
            make_watermarks = WatermarkFactory(watermark_strategy)

        def making(source: Any) -> Callable[[int], OperatorFactory]:
            if is_timed and tells_event_time(source):
                return partial(source.create_timed_operator_factory, strategy=watermark_strategy)
            make: Callable[[int], OperatorFactory] = source.create_operator_factory
            return make

        reading = self.add(
            Transformation(
                source_name,
                making(source),
                output_type=getattr(source, "type_info", None),
                narrowed=(lambda *needs: making(source.narrowed(*needs)))
                if isinstance(source, Source)
                else None,
            )
        )
        if not is_timed:
            return DataStream(self, (End(reading),), reading)
        timing = self.add(
            Transformation(
                f"{source_name}: watermarks",
                lambda parallelism: make_watermarks,
                inputs=(End(reading),),
                companion_of=reading,
                role="watermarks",
                uses=timed_use(watermark_strategy),
                output_type=reading.output_type,
            )
        )
        return DataStream(self, (End(timing),), reading)

    # Running ----------------------------------------------------------------------------------

    def execute(
        self, job_name: str | None = None, *, collect_limit: int | None = None
    ) -> JobExecutionResult:
        """Run the new sinks until their job ends, or ``collect_limit`` records were collected.

        The job consists of the sinks that were attached since the last one, and all that leads to
        them. However it ends, they are not new any more. PyFlink has no ``collect_limit``.

        Raises:
            GraphError: The pipeline cannot run; its author can repair it.
            ConfigError: Settings and options contradict each other.
            RestoreError: The checkpoint or savepoint to restore cannot be found.
            JobFailedError: The job failed for good; the message is the cause.
        """
        graph, config, options = self._next_job(job_name)
        return execution.execute(graph, config, replace(options, collect_limit=collect_limit))

    def start(self, job_name: str | None = None) -> CloseableIterator:
        """Start the job of the new sinks and return its collected records; for the stream classes.

        Raises:
            WeirError: As ``execute``, for what is known before the job starts.
        """
        return execution.start(*self._next_job(job_name))

    def get_job_graph(self, job_name: str | None = None) -> JobGraph:
        """The job graph that ``execute`` would run; not in PyFlink.

        Raises:
            GraphError: The pipeline cannot run; its author can repair it.
        """
        config = self._options().over(self._config(job_name))
        return self._build(config)

    def get_execution_plan(self) -> str:
        """The job graph as JSON, in the form of Flink's execution plans."""
        graph = self.get_job_graph()
        nodes = [
            _node(op, [e for e in graph.edges if e.target == op.uid]) for op in graph.operators
        ]
        return json.dumps({"name": graph.name, "nodes": nodes}, indent=2)

    def add(self, transformation: Transformation) -> Transformation:
        """Add an operator to the pipeline; for the stream classes, not for users."""
        self._added += 1
        transformation.number = self._added
        self._new.append(transformation)
        return transformation

    def placed(self, sink: Sink) -> Sink:
        """The sink, told to write its files where the options of this run say; for streams.

        Raises:
            ConfigError: The sink writes files and cannot write them elsewhere.
        """
        output = execution.current_options().output
        if output is None:
            return sink
        return sink.moved_below(os.path.join(output, str(self._added)))

    def _next_job(self, job_name: str | None) -> tuple[JobGraph, JobConfig, ExecutionOptions]:
        """The job of the new sinks, which are not new any more, even if it cannot be built."""
        if job_name:
            check_text(job_name, "execute")
        try:
            options = self._options()
            config = options.over(self._config(job_name))
            graph = self._build(config)
            if not execution.is_capturing():
                log_to_stderr()
                for remark in remarks(self._new):
                    logger.warning("%s", remark)
            return graph, config, options
        finally:
            self._new = []

    def _build(self, config: JobConfig) -> JobGraph:
        if self._added and not self._new:
            raise GraphError(
                "all that was built has been executed, so there is nothing to execute: attach a "
                "sink to a stream (print, sink_to, execute_and_collect) to run the stream again"
            )
        members = leading_to(self._new)
        return build_graph(members, config, chaining=self._chaining, on_error=self._on_error)

    def _options(self) -> ExecutionOptions:
        options = execution.current_options()
        if options.restore:
            return options
        return replace(options, restore=self._restore, claims=options.claims or self._claims)

    def _config(self, job_name: str | None) -> JobConfig:
        return replace(
            self._job,
            name=job_name or self._job.name,
            checkpoints=self._checkpoints.settings,
            restart=self._restart,
            object_reuse=self._execution.is_object_reuse_enabled(),
        )


def _node(op: Operator, inputs: list[Edge]) -> dict[str, Any]:
    return {
        "id": op.uid,
        "type": op.name,
        "pact": "Data Source" if op.is_source else "Data Sink" if op.is_sink else "Operator",
        "parallelism": op.parallelism,
        "predecessors": [
            {
                "id": edge.source,
                "ship_strategy": edge.partitioning.name,
                **({"side_output": edge.side_tag} if edge.side_tag else {}),
            }
            for edge in inputs
        ],
    }
