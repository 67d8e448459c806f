"""Operators without keyed state: map, filter, flat_map and process, per record and per batch.

Each handles a whole slice in one comprehension, whose records are the receiver's own and of the
declared type (``hand_over``). Event times stay with their records: a mapped record keeps its time,
the records that a flat map makes of one have its time. A vectorised function that may change the
number of rows does not tell which came from which, so its output has no event time until it is
assigned again.

Operators whose functions can ask for the watermark keep it in their snapshot, and those with a
policy for bad records the number of these; the others have no state. With a policy records are
processed in a loop that goes on behind a bad one.

Functions whose records are known to come from which carry the watermarks between them: the records
made of one stand where it stood. Where bad records go to a side output, slices are cut instead, so
that each of these comes out before the watermark that followed it.
"""

import copy
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.batch import Batch, Timestamps, builtin_name
from weir.common.column_types import fit_columns
from weir.common.signatures import returns_nothing
from weir.common.typeinfo import TypeInformation
from weir.errors import BadRecordsError, SchemaError, UserError
from weir.ids import CheckpointId
from weir.operators.bad_records import BadRecords
from weir.operators.base import Operator, OperatorContext
from weir.operators.collector import Collector, times_of
from weir.operators.event_time import WatermarkState
from weir.operators.functions import (
    BatchProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    ProcessFunction,
    RuntimeContext,
    TimerService,
)
from weir.operators.hand_over import HandOver
from weir.operators.user_code import (
    all_handled,
    failure_at,
    failure_in,
    failure_in_open,
    returning_records,
    short_repr,
)
from weir.protocol.elements import MIN_WATERMARK_MS

logger = logging.getLogger(__name__)


class FunctionOperator(Operator):
    """Opens and closes a function of the user's, a copy of its own, together with the operator."""

    keyed = False

    def __init__(self, function: Any) -> None:
        self.function = copy.deepcopy(function)
        self.bad: BadRecords | None = None  # None: without a policy.
        self._opened = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the function."""
        super().open(ctx)
        if ctx.on_error is not None:
            self.bad = BadRecords(ctx, ctx.on_error, keyed=self.keyed)
        if isinstance(self.function, Function):
            self._opened = (
                True  # Before the call: a function that fails half way is closed as well.
            )
            try:
                self.function.open(RuntimeContext(ctx, keyed=self.keyed))
            except Exception as error:
                raise failure_in_open(ctx.label, error) from error

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Keep the number of bad records in the snapshot."""
        if self.bad is not None:
            self.bad.save()

    def close(self) -> None:
        """Close the function if it was opened."""
        if self._opened:
            self._opened = False
            self.function.close()


class CallOperator(FunctionOperator):
    """Calls a function of one record, for each record of a slice in order."""

    call: Callable[[Any], Any]

    @property
    def carries_watermarks(self) -> bool:
        """Unless bad records are told apart, which may go to a side output."""
        return self.bad is None

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Process a slice."""
        if self.bad is not None:
            self._tolerate(batch, self.bad)
            return
        rows = batch.rows
        left = iter(rows)
        try:
            made = self.apply(batch, left)
        except Exception as error:
            raise failure_at(self.ctx.label, rows, left, error) from error
        all_handled(self.ctx.label, left)
        self.ctx.output.emit(self.made(batch, made))  # Failures downstream are not the function's.

    def _tolerate(self, batch: Batch, bad: BadRecords) -> None:
        """Process a slice, past the records on which the function raises."""
        rows = batch.rows
        left = iter(rows)
        good: list[int] = []
        results: list[Any] = []
        try:
            for i, row in enumerate(left):
                original = bad.original(row)
                try:
                    results.append(self.apply_one(row))
                except Exception as error:
                    at = None if batch.timestamps is None else int(batch.timestamps[i])
                    bad.take(original, at, error)
                else:
                    good.append(i)
                    bad.keep()
        except BadRecordsError:
            raise
        except Exception as error:
            raise failure_at(self.ctx.label, rows, left, error) from error
        all_handled(self.ctx.label, left)
        if len(good) < len(rows):
            batch = batch.take(np.array(good, np.int64))
        self.ctx.output.emit(self.made_of_each(batch, results))
        bad.flush()

    @abstractmethod
    def apply_one(self, row: Any) -> Any:
        """Call the function for one record; returns its result for ``made_of_each``."""

    @abstractmethod
    def made_of_each(self, batch: Batch, results: list[Any]) -> Batch:
        """The output slice, from the results of ``apply_one`` for each record of the batch."""

    @abstractmethod
    def apply(self, batch: Batch, left: Iterator[Any]) -> Any:
        """Call the function for each row of ``left``; returns the results for ``made``."""

    @abstractmethod
    def made(self, batch: Batch, returned: Any) -> Batch:
        """The output slice, from the batch and the results of ``apply``."""


class MapOperator(CallOperator):
    """Makes one record of each."""

    def __init__(self, function: Any, output_type: TypeInformation | None = None) -> None:
        super().__init__(function)
        own = self.function
        self.call = own.map if isinstance(own, MapFunction) else own
        self._output_type = output_type

    def open(self, ctx: OperatorContext) -> None:
        """Open the function."""
        self._hand_over = HandOver(ctx, self._output_type, self.call)
        super().open(ctx)

    def apply(self, batch: Batch, left: Iterator[Any]) -> list[Any]:
        """One record for each."""
        return self._hand_over.of_each(self.call, left)

    def made(self, batch: Batch, returned: list[Any]) -> Batch:
        """The records with their times."""
        return self._hand_over.batch(returned, batch.timestamps).marked(batch.watermarks)

    def apply_one(self, row: Any) -> Any:
        """The record made of one."""
        return self._hand_over.of_each(self.call, (row,))[0]

    def made_of_each(self, batch: Batch, results: list[Any]) -> Batch:
        """The records with their times."""
        return self.made(batch, results)


class FilterOperator(CallOperator):
    """Keeps some of the records."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        own = self.function
        self.call = own.filter if isinstance(own, FilterFunction) else own

    def apply(self, batch: Batch, left: Iterator[Any]) -> list[int]:
        """The row numbers of the records that stay."""
        keeps = self.call
        return [i for i, row in enumerate(left) if keeps(row)]

    def made(self, batch: Batch, returned: list[int]) -> Batch:
        """The records that stay; the batch itself if all do."""
        return batch if len(returned) == len(batch) else batch.share(np.array(returned, np.int64))

    def apply_one(self, row: Any) -> bool:
        """Whether a record stays."""
        return bool(self.call(row))

    def made_of_each(self, batch: Batch, results: list[Any]) -> Batch:
        """The records that stay."""
        return self.made(batch, [i for i, stays in enumerate(results) if stays])


class FlatMapOperator(CallOperator):
    """Makes any number of records of each."""

    def __init__(self, function: Any, output_type: TypeInformation | None = None) -> None:
        super().__init__(function)
        own = self.function
        self.call = own.flat_map if isinstance(own, FlatMapFunction) else own
        self._output_type = output_type
        self._made = 0
        self._gives_none: bool | None = None  # For the first record of every slice; None: none yet.
        self._warned = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the function."""
        self._hand_over = HandOver(ctx, self._output_type, self.call)
        super().open(ctx)

    def apply(self, batch: Batch, left: Iterator[Any]) -> list[list[Any]]:
        """The records made of each record; in one list if no times or watermarks are to be kept."""
        flat_map, of_all = self.call, self._hand_over.of_all
        first = [of_all(self._looked_at, (row,)) for row in islice(left, 1)]
        if batch.timestamps is None and batch.watermarks is None:
            made = list(chain.from_iterable(first))
            made += of_all(flat_map, left)
            self._made += len(made)
            return [made]
        all_made = first + [of_all(flat_map, (row,)) for row in left]
        self._made += sum(map(len, all_made))
        return all_made

    def _looked_at(self, row: Any) -> Any:
        """The result for the first record of a slice, which tells most mistakes."""
        made = self.call(row)
        if made is not None:
            self._gives_none = False
        elif self._gives_none is None:
            self._gives_none = True
        if type(made) is str and len(made) > 1 and not self._warned:
            self._warned = True
            logger.warning(
                "%s returned the text %s for the record %s, and each of its characters becomes a "
                "record; return [text] for one record, or text.split() for its words",
                self.ctx.label,
                short_repr(made),
                short_repr(row),
            )
        return made

    def finish(self) -> None:
        """Tell that no record came out, because the function returned None for all that went in."""
        called = getattr(self.function, "flat_map", self.function)
        is_remarked = isinstance(called, FunctionType) and returns_nothing(called)
        if self._gives_none and not self._made and not is_remarked:
            logger.warning(
                "%s made no record of all that it got: its function returns None; let it return a "
                "list of records, or yield them",
                self.ctx.label,
            )
        super().finish()

    def made(self, batch: Batch, returned: list[list[Any]]) -> Batch:
        """All records, each with the time of the record it was made of."""
        if batch.timestamps is None and batch.watermarks is None:
            return self._hand_over.batch(returned[0])
        counts = list(map(len, returned))
        timestamps = None if batch.timestamps is None else np.repeat(batch.timestamps, counts)
        made = self._hand_over.batch(list(chain.from_iterable(returned)), timestamps)
        if batch.watermarks is None:
            return made
        ends = np.cumsum([0, *counts])
        return made.marked(batch.watermarks.moved(ends[batch.watermarks.behind]))

    def apply_one(self, row: Any) -> list[Any]:
        """All records made of one."""
        return self._hand_over.of_all(self.call, (row,))

    def made_of_each(self, batch: Batch, results: list[Any]) -> Batch:
        """All records, each with the time of the record it was made of."""
        if batch.timestamps is None:
            results = [list(chain.from_iterable(results))]
        return self.made(batch, results)


class _TimedOperator(FunctionOperator):
    """An operator whose function sees the watermark, which it keeps over a restore."""

    watermark = MIN_WATERMARK_MS  # The event time reached, in milliseconds.

    def open(self, ctx: OperatorContext) -> None:
        """Open the function, with the restored watermark."""
        self._saved_watermark = WatermarkState(ctx)
        self.watermark = self._saved_watermark.restored_ms
        super().open(ctx)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Note the watermark for the function's context, and pass it on."""
        self.watermark = max(self.watermark, timestamp_ms)
        super().on_watermark(timestamp_ms)

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Keep the watermark in the snapshot."""
        super().prepare_snapshot(checkpoint_id)
        self._saved_watermark.save(self.watermark)


class ProcessOperator(_TimedOperator):
    """Makes any number of records of each, for several outputs."""

    def __init__(
        self, function: ProcessFunction, output_type: TypeInformation | None = None
    ) -> None:
        super().__init__(function)
        self._process = returning_records(self.function.process_element)
        self._output_type = output_type

    def open(self, ctx: OperatorContext) -> None:
        """Open the function."""
        self._collector = Collector(ctx, self._output_type)
        super().open(ctx)

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Process a slice."""
        rows, process, take = batch.rows, self._process, self._collector.take
        context = _ElementContext(self)
        times = times_of(batch)
        left = iter(rows)
        try:
            if self.bad is not None:
                each = self._with_context(zip(left, times, strict=True), context)
                self.bad.process_each(each, lambda row: process(row, context), self._collector)
            else:
                for row, timestamp in zip(left, times, strict=True):
                    context.now = timestamp
                    if (made := process(row, context)) is not None:
                        take(made, timestamp)
        except BadRecordsError:
            raise
        except Exception as error:
            raise failure_at(self.ctx.label, rows, left, error, timestamp=context.now) from error
        self._collector.flush()
        if self.bad is not None:
            self.bad.flush()

    def _with_context(
        self, records: Iterable[tuple[Any, int | None]], context: "_ElementContext"
    ) -> Iterator[tuple[Any, int | None]]:
        for row, timestamp in records:
            context.now = timestamp
            yield row, timestamp


class _ElementContext(ProcessFunction.Context, TimerService):
    """The context and the timer service of a stream without a key, in one."""

    def __init__(self, operator: ProcessOperator) -> None:
        self._operator = operator
        self.now: int | None = None

    def timer_service(self) -> TimerService:
        return self

    def timestamp(self) -> int | None:
        return self.now

    def current_processing_time(self) -> int:
        return self._operator.ctx.clock.now_ms()

    def current_watermark(self) -> int:
        return self._operator.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        raise self._refusal()

    def register_event_time_timer(self, timestamp: int) -> None:
        raise self._refusal()

    def delete_processing_time_timer(self, timestamp: int) -> None:
        raise self._refusal()

    def delete_event_time_timer(self, timestamp: int) -> None:
        raise self._refusal()

    def _refusal(self) -> Exception:
        return UserError(
            f"{self._operator.ctx.label} uses a timer on a stream without a key; call key_by "
            "before process and derive from KeyedProcessFunction"
        )


class MapBatchesOperator(FunctionOperator):
    """Makes one record batch of each, with as many rows."""

    def __init__(
        self,
        function: Any,
        output_type: TypeInformation | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(function)
        own = self.function
        self._map = own.map if isinstance(own, MapFunction) else own
        self._output_type = output_type
        self._columns = columns

    @property
    def carries_watermarks(self) -> bool:
        """Always: a row stands where that of its number stood."""
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Map a slice."""
        mapped = _checked(self.ctx.label, _call(self, self._map, self._given(batch)), "map_batches")
        if mapped.num_rows != len(batch):
            raise SchemaError(
                f"{self.ctx.label} made {mapped.num_rows} rows of {len(batch)}; a function that "
                "changes the number of rows belongs in filter_batches or flat_map_batches"
            )
        made = declared(self.ctx, mapped, self._output_type, batch.timestamps)
        if batch.is_columnar and made.columns is batch.columns:
            made.know_size(batch.size)  # The function only looked at them.
        self.ctx.output.emit(made.marked(batch.watermarks))

    def _given(self, batch: Batch) -> pa.RecordBatch:
        """The columns that the function gets."""
        columns = self.columns_of(batch)
        if self._columns is None:
            return columns
        if missing := [name for name in self._columns if name not in columns.schema.names]:
            raise SchemaError(
                f"{self.ctx.label} names the column {', '.join(missing)}, which the records do not "
                f"have; they have {', '.join(columns.schema.names)}"
            )
        return columns.select(list(self._columns))


class FilterBatchesOperator(FunctionOperator):
    """Keeps the rows whose value in the function's mask is true; null counts as False."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        own = self.function
        self._filter = own.filter if isinstance(own, FilterFunction) else own

    @property
    def carries_watermarks(self) -> bool:
        """Always."""
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Filter a slice."""
        columns = self.columns_of(batch)
        kept = np.flatnonzero(self._mask(_call(self, self._filter, columns), len(batch)))
        if len(kept) == len(batch):
            self.ctx.output.emit(batch)
        else:
            self.ctx.output.emit(
                Batch.of_columns(
                    columns.take(pa.array(kept)),
                    batch.type,
                    None if batch.timestamps is None else batch.timestamps[kept],
                    None if batch.watermarks is None else batch.watermarks.among(kept),
                )
            )

    def _mask(self, mask: Any, count: int) -> npt.NDArray[np.bool_]:
        if isinstance(mask, pa.Array | pa.ChunkedArray):
            mask = mask.fill_null(False) if mask.null_count else mask
            mask = mask.to_numpy() if isinstance(mask, pa.ChunkedArray) else _numpy(mask)
        chosen: npt.NDArray[np.bool_] = np.asarray(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (count,):
            raise SchemaError(
                f"{self.ctx.label} must return one boolean per row: {count} of them, but returned "
                f"{chosen.dtype} of shape {chosen.shape}"
            )
        return chosen


class FlatMapBatchesOperator(FunctionOperator):
    """Makes any number of rows of each record batch, without event time."""

    def __init__(self, function: Any, output_type: TypeInformation | None = None) -> None:
        super().__init__(function)
        own = self.function
        self._flat_map = own.flat_map if isinstance(own, FlatMapFunction) else own
        self._output_type = output_type

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Flat map a slice."""
        made = _call(self, lambda columns: _listed(self._flat_map(columns)), self.columns_of(batch))
        for part in made:
            checked = _checked(self.ctx.label, part, "flat_map_batches")
            self.ctx.output.emit(declared(self.ctx, checked, self._output_type, None))


class ProcessBatchesOperator(_TimedOperator):
    """Makes any number of record batches of each, for several outputs.

    An output batch with as many rows as the input has the input's event times.
    """

    def __init__(
        self, function: BatchProcessFunction, output_type: TypeInformation | None = None
    ) -> None:
        super().__init__(function)
        self._output_type = output_type

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Process a slice."""
        context = _BatchContext(self, batch.timestamps)
        made = _call(
            self,
            lambda columns: _listed(self.function.process_batch(columns, context)),
            self.columns_of(batch),
        )
        for part in made:
            tag, columns = part if isinstance(part, tuple) else (None, part)
            columns = _checked(self.ctx.label, columns, "process_batches")
            timestamps = batch.timestamps if columns.num_rows == len(batch) else None
            if tag is None:
                self.ctx.output.emit(declared(self.ctx, columns, self._output_type, timestamps))
            else:
                side = declared(self.ctx, columns, tag.type_info, timestamps)
                self.ctx.output.emit_side(tag.tag_id, side)


class _BatchContext(BatchProcessFunction.Context):
    def __init__(self, operator: ProcessBatchesOperator, timestamps: Timestamps | None) -> None:
        self._operator = operator
        self._timestamps = timestamps

    def timestamps(self) -> Timestamps | None:
        return self._timestamps

    def current_watermark(self) -> int:
        return self._operator.watermark

    def current_processing_time(self) -> int:
        return self._operator.ctx.clock.now_ms()


def declared(
    ctx: OperatorContext,
    columns: pa.RecordBatch,
    kind: TypeInformation | None,
    timestamps: Timestamps | None,
) -> Batch:
    """The columns that a user's function made, as a batch of the declared type.

    Raises:
        SchemaError: They do not fit it; the message names the operator and the column.
    """
    if kind is not None:
        try:
            columns = fit_columns(columns, kind)
        except SchemaError as error:
            raise SchemaError(
                f"{ctx.label} made columns that do not fit its output_type: {error}"
            ) from error
    return Batch.of_columns(columns, kind, timestamps)


def _call(operator: Operator, function: Callable[[Any], Any], columns: pa.RecordBatch) -> Any:
    try:
        return function(columns)
    except Exception as error:
        names = ", ".join(columns.schema.names)
        where = f"on a batch of {columns.num_rows} rows ({names})"
        # After a restart batches may be cut elsewhere.
        place = f"on a batch ({names})"
        raise failure_in(operator.ctx.label, where, error, place=place) from error


def _listed(made: Any) -> list[Any]:
    if made is None:
        return []
    return [made] if isinstance(made, pa.RecordBatch | pa.Table) else list(made)


def _checked(label: str, made: Any, method: str) -> pa.RecordBatch:
    if isinstance(made, pa.Table):
        batches = made.combine_chunks().to_batches()
        made = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=made.schema)
    if not isinstance(made, pa.RecordBatch):
        raise SchemaError(
            f"{label} returned a {builtin_name(made)}; {method} must make a pyarrow.RecordBatch, "
            "e.g. pa.RecordBatch.from_pydict({...})"
        )
    return made


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values
