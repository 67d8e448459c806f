"""Sources: all of them give their records in order."""

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.programs.oracle.calls import result_of
from tests.programs.oracle.columns import rows_of_columns
from tests.programs.oracle.declared_types import Type, applied
from tests.programs.oracle.events import Event, Record


class Collection:
    """Stands in for every source: its records in order."""

    def __init__(self, rows: Iterable[Any], type_info: Type | None = None) -> None:
        self.rows = list(rows)
        self.type_info = type_info

    def events(self) -> Iterator[Event]:
        for row in self.rows:
            yield Record(applied(self.type_info, row))


def generated(
    function: Callable[[Any], Any],
    count: int,
    *,
    vectorised: bool = False,
    type_info: Type | None = None,
) -> Collection:
    """Stands in for ``DataGeneratorSource``."""
    if vectorised:
        return Collection(rows_of_columns(function(np.arange(count))), type_info)
    return Collection([copy.deepcopy(result_of(function, i)) for i in range(count)], type_info)


def numbers(start: int, end: int) -> Collection:
    """Stands in for ``NumberSequenceSource``."""
    return Collection(range(start, end + 1))


def parquet(path: Any, columns: Any = None, *, split_by: str = "row_group") -> Collection:
    """Stands in for ``ParquetSource``."""
    return Collection(
        chain.from_iterable(rows_of_columns(b) for b in pq.read_table(path).to_batches())
    )
