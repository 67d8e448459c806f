"""``FunctionHarness``: one operator around a function, without a job.

Elements go in one at a time, and what they lead to is there when the call returns. The operator,
its keyed state, its timers and its snapshots are those of a job.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import pyarrow as pa

from weir.common.batch import Batch
from weir.config import CheckpointConfig
from weir.datastream.connectors import BlackHoleSink
from weir.datastream.environment import StreamExecutionEnvironment
from weir.datastream.keys import KeyArgument
from weir.datastream.stream import DataStream
from weir.errors import ConfigError, GraphError, WeirError
from weir.graph.key_groups import default_max_parallelism, key_group_range
from weir.graph.logical import Operator as OperatorNode
from weir.ids import AttemptNumber, CheckpointId, JobId, StateHandle, SubtaskId
from weir.operators.base import Operator, OperatorContext
from weir.operators.functions import (
    BatchProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from weir.operators.output_tag import OutputTag
from weir.protocol.deployment import RestoredHandle
from weir.protocol.elements import MIN_WATERMARK_MS
from weir.state.store import OperatorStateStore
from weir.storage.memory import MemoryStore
from weir.storage.writer import writer_factory
from weir.testing.manual_clock import ManualClock

PENDING_MAX = 256  # Timers that fire in one round,
ROUNDS_MAX = 1_000  # and rounds in one call.


_Timed: TypeAlias = tuple[Any, int | None]  # A record and its event time.


@dataclass(slots=True)
class _Outputs:
    """Records that left the operator, with their event times."""

    main: list[_Timed] = field(default_factory=list)
    sides: defaultdict[str, list[_Timed]] = field(default_factory=lambda: defaultdict(list))
    watermark_ms: int = MIN_WATERMARK_MS

    def emit(self, batch: Batch) -> None:
        self.main += _records(batch)
        if batch.watermarks is not None:
            self.emit_watermark(batch.watermarks.last_ms)

    def emit_side(self, tag: str, batch: Batch) -> None:
        self.sides[tag] += _records(batch)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.watermark_ms = timestamp_ms

    def emit_idle(self) -> None:
        pass  # A harness has one operator, and nothing behind it waits.


class FunctionHarness:
    """One operator with a function of the user's, stepped by a test; a context."""

    _METHODS: ClassVar[Mapping[type[Function], str]] = {
        MapFunction: "map",
        FlatMapFunction: "flat_map",
        FilterFunction: "filter",
        ReduceFunction: "reduce",
        ProcessFunction: "process",
        KeyedProcessFunction: "process",
        BatchProcessFunction: "process_batches",
    }

    def __init__(
        self,
        function: Function | Callable[[DataStream], DataStream],
        *,
        key_by: KeyArgument | None = None,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        start_ms: int = 0,
    ) -> None:
        """Open the function.

        Args:
            function: An object of a function class, such as a ``KeyedProcessFunction``; or a
                function from stream to stream that adds one operator, such as a window.
            key_by: The key of the records, as for ``DataStream.key_by``; None: they have none.
            parameters: The pipeline's arguments.
            secrets: The values that the function may get, by name.
            start_ms: The processing time at first.

        Raises:
            GraphError: It is no such function, or lacks a key that it needs.
            SubtaskError: ``open`` failed.
        """
        self._node = _operator_of(function, key_by)
        self._clock = ManualClock(start_ms)
        self._parameters, self._secrets = dict(parameters or {}), dict(secrets or {})
        self._outputs = _Outputs()
        self._snapshots = 0
        self._open(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # Input and time.

    def process_element(self, value: Any, timestamp_ms: int | None = None) -> list[Any]:
        """Process a record, with an event time or without; returns what came out for it.

        Raises:
            SubtaskError: The function failed; the message names the record.
        """
        return self.process_elements([value], None if timestamp_ms is None else [timestamp_ms])

    def process_elements(
        self, values: Sequence[Any], timestamps_ms: Sequence[int] | None = None
    ) -> list[Any]:
        """Process records as one slice; returns what came out for them."""
        times = None if timestamps_ms is None else np.array(timestamps_ms, np.int64)
        if values and all(isinstance(value, pa.RecordBatch) for value in values):
            batch = pa.Table.from_batches(values).combine_chunks().to_batches()[0]
            return self._stepped(
                lambda: self._operator.on_batch(Batch.of_columns(batch, None, times), 0)
            )
        return self._stepped(
            lambda: self._operator.on_batch(Batch.of_rows(list(values), None, times), 0)
        )

    def advance_watermark(self, to_ms: int) -> list[Any]:
        """Let event time reach ``to_ms``; returns what its timers and windows emitted."""
        return self._stepped(lambda: self._operator.on_watermark(to_ms))

    def advance_processing_time(self, by_ms: int) -> list[Any]:
        """Let time pass, timer by timer; returns what they emitted."""
        if by_ms < 0:
            raise ConfigError(f"time does not go back, by {by_ms} ms")
        end_ms = self._clock.now_ms() + by_ms

        def pass_time() -> None:
            while (due_ms := self._operator.next_timer_ms()) is not None and due_ms <= end_ms:
                self._clock.wait_until(due_ms * 1_000_000)
                self._operator.on_processing_time(self._clock.now_ms())
                self._fire()
            self._clock.wait_until(end_ms * 1_000_000)
            self._state.tidy()

        return self._stepped(pass_time)

    @property
    def processing_time_ms(self) -> int:
        """The processing time, milliseconds since the epoch."""
        return self._clock.now_ms()

    def restart(self) -> None:
        """Take a snapshot and go on from it in a new operator and function, as after a failure."""
        handles = self._snapshot()
        self.close()
        self._open(handles)

    # What there is to see.

    @property
    def output(self) -> list[Any]:
        """All records of the main output so far."""
        return [record for record, _ in self._outputs.main]

    @property
    def timed_output(self) -> list[tuple[Any, int | None]]:
        """The same with their event times; None: a record has none."""
        return list(self._outputs.main)

    def side_output(self, tag: OutputTag) -> list[Any]:
        """All records of a side output so far."""
        return [record for record, _ in self._outputs.sides[tag.tag_id]]

    @property
    def watermark_ms(self) -> int:
        """The last watermark that was passed on; the smallest int64 at first."""
        return self._outputs.watermark_ms

    def state(self, key: Any) -> dict[str, Any]:
        """Copies of the values under a key, by the name of their state.

        Raises:
            UserError: The operator has no keyed state.
        """
        return self._state.values_of(key)

    def timers(self, key: Any) -> dict[str, list[int]]:
        """The times of a key's timers by ``"event_time"`` and ``"processing_time"``, ascending.

        Raises:
            UserError: The operator has no keyed state.
        """
        return self._state.times_of(key)

    def close(self) -> None:
        """Close the function."""
        self._operator.close()
        self._state.close()

    # Running.

    def _stepped(self, step: Callable[[], None]) -> list[Any]:
        before = len(self._outputs.main)
        step()
        self._fire()
        return self.output[before:]

    def _fire(self) -> None:
        rounds = 0
        while self._operator.has_pending:
            self._operator.advance(PENDING_MAX)
            rounds += 1
            if rounds > ROUNDS_MAX:
                raise ConfigError(
                    f"{self._node.name!r} does not come to rest: its timers register others that "
                    "are due already"
                )

    def _open(self, restored: Sequence[StateHandle]) -> None:
        groups = default_max_parallelism(1)
        key_groups = key_group_range(groups, 1, 0)
        self._state = OperatorStateStore(
            key_groups,
            groups,
            keyed=self._node.keyed,
            restored=[RestoredHandle(handle, handle.key_groups) for handle in restored],
            read=lambda handle: handle.inline or b"",
            operator=self._node.uid,
            clock=self._clock,
        )
        self._operator: Operator = self._node.factory()
        self._operator.open(
            OperatorContext(
                job_id=JobId("harness"),
                attempt=AttemptNumber(self._snapshots + 1),
                subtask=SubtaskId(self._node.uid, 0),
                name=self._node.name,
                parallelism=1,
                max_parallelism=groups,
                key_groups=key_groups,
                output=self._outputs,
                state=self._state,
                clock=self._clock,
                parameters=self._parameters,
                checkpointing=True,
                deliver=lambda checkpoint_id, rows: None,
                on_error=self._node.on_error,
                secrets=self._secrets,
                location=self._node.location,
            )
        )

    def _snapshot(self) -> list[StateHandle]:
        self._snapshots += 1
        checkpoint_id = CheckpointId(self._snapshots)
        self._operator.prepare_snapshot(checkpoint_id)
        parts = [*self._state.freeze(checkpoint_id), *self._operator.snapshot(checkpoint_id)]
        writers = writer_factory(
            MemoryStore(), JobId("harness"), AttemptNumber(1), CheckpointConfig(), durable=False
        )
        writer = writers(checkpoint_id, SubtaskId(self._node.uid, 0), lambda: False)
        handles = [handle for part in parts for handle in part.write(writer)]
        for part in parts:
            part.release()
        return handles


def _records(batch: Batch) -> list[_Timed]:
    times = [None] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
    return list(zip(batch.rows, times, strict=True))


def _operator_of(function: Any, key_by: KeyArgument | None) -> OperatorNode:
    """The operator that a stream makes of the function."""
    env = StreamExecutionEnvironment.get_execution_environment()
    stream: DataStream = env.from_collection([])
    if key_by is not None:
        stream = stream.key_by(key_by)
    if isinstance(function, Function):
        methods = FunctionHarness._METHODS
        method = next((name for kind, name in methods.items() if isinstance(function, kind)), "")
        if not hasattr(stream, method):
            need = "needs a key: give key_by" if method else "cannot be run by itself"
            raise GraphError(f"a {type(function).__name__} {need}")
        made = getattr(stream, method)(function)
    elif callable(function):
        try:
            made = function(stream)
        except WeirError:
            raise
        except Exception as error:
            raise GraphError(
                f"{function!r} failed when it was given a stream: {error}; give a function of "
                "records as lambda stream: stream.map(function)"
            ) from error
    else:
        raise GraphError(f"{function!r} is no function object, nor a function of a stream")
    if not isinstance(made, DataStream):
        raise GraphError(
            f"{function!r} returned {made!r} for a stream; give a function object such as a "
            "MapFunction, or a function that adds one operator to the stream and returns it"
        )
    made.sink_to(BlackHoleSink())
    operators = [op for op in env.get_job_graph().operators if not (op.is_source or op.is_sink)]
    if len(operators) != 1:
        names = ", ".join(repr(op.name) for op in operators) or "none"
        raise GraphError(
            f"a FunctionHarness runs one operator, and these are {names}; run several in a "
            "PipelineHarness"
        )
    return operators[0]
