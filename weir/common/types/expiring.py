"""The type of a value with the time of its last touch, for state with a time-to-live."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.common.types.base import Copier, TypeInformation, Wire, check_is_type
from weir.errors import SchemaError


@dataclass(frozen=True, slots=True)
class ExpiringTypeInfo(TypeInformation):
    """Pairs of a time in milliseconds and a value, stored as an Arrow struct.

    Raises:
        SchemaError: ``domain`` is no time domain.
    """

    value_type: TypeInformation
    domain: str  # Of the times: "processing_time" or "event_time".

    def __post_init__(self) -> None:
        check_is_type(self.value_type)
        if self.domain not in ("processing_time", "event_time"):
            raise SchemaError(f"{self.domain!r} is no time domain of this version of Weir")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct([("touched_ms", pa.int64()), ("value", self.value_type.arrow_type)])

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        times = pa.array([touched_ms for touched_ms, _ in values], pa.int64())
        held = self.value_type.to_arrow([value for _, value in values])
        return pa.StructArray.from_arrays([times, held], fields=list(self.arrow_type))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        times = array.field(0).to_pylist()
        return list(zip(times, self.value_type.from_arrow(array.field(1)), strict=True))

    def to_wire(self) -> Wire:
        return ["EXPIRING", self.domain, self.value_type.to_wire()]

    @property
    def copier(self) -> Copier | None:
        inner = self.value_type.copier
        return None if inner is None else lambda pair: (pair[0], inner(pair[1]))

    @property
    def has_pickles(self) -> bool:
        return self.value_type.has_pickles
