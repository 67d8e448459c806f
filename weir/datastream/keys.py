"""Key selectors and partitioners: the arguments of ``key_by`` and ``partition_custom`` on edges."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weir.common.typeinfo import TypeInformation
from weir.datastream.checks.arguments import check_function, check_type
from weir.errors import GraphError
from weir.operators.functions import KeySelector, Partitioner
from weir.operators.keys import ColumnKeySelector, FunctionKeySelector

KeyArgument: TypeAlias = KeySelector | Callable[[Any], Any] | str | Sequence[str]
Selector: TypeAlias = ColumnKeySelector | FunctionKeySelector


def selector_of(
    key: KeyArgument, key_type: TypeInformation | None = None, location: str = ""
) -> Selector:
    """The selector for a function, a ``KeySelector``, a column name or several.

    Raises:
        GraphError: ``key`` is none of these, or columns are given together with a ``key_type``.
    """
    if isinstance(key, KeySelector) or callable(key):
        check_function(key, KeySelector, "key_by", "get_key")
    check_type(key_type, "key_type")
    if isinstance(key, KeySelector):
        return FunctionKeySelector(key.get_key, key_type, location=location)
    if callable(key):
        return FunctionKeySelector(key, key_type, location=location)
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise GraphError(
            f"key_by cannot use {key!r}; give it a function, a KeySelector, a column name or a "
            f"list of column names{_positions(key)}"
        )
    if len(set(names)) != len(names):
        raise GraphError(f"key_by names a column twice: {', '.join(names)}")
    if key_type is not None:
        raise GraphError("key_type is for key functions; a key column has the column's own type")
    return ColumnKeySelector(names, location)


def _positions(key: object) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return f"; for a field by its position write key_by(lambda record: record[{key}])"
    return ""


@dataclass(frozen=True, slots=True)
class RowPartitioner:
    """A custom partitioner with its key function: one call of each per record."""

    choose: Callable[[Any, int], int]
    key_of: Callable[[Any], Any]
    location: str = ""  # Of the call of partition_custom, for messages.

    @property
    def label(self) -> str:
        """The partitioner as errors name it: ``partition_custom (pipeline.py:12)``."""
        return f"partition_custom ({self.location})" if self.location else "partition_custom"

    def partition(self, row: Any, channel_count: int) -> int:
        """The index of the channel that ``row`` goes to."""
        return self.choose(self.key_of(row), channel_count)


def row_partitioner(
    partitioner: Partitioner | Callable[[Any, int], int],
    key: KeySelector | Callable[[Any], Any],
    location: str = "",
) -> RowPartitioner:
    """The row partitioner of two objects or plain functions.

    Raises:
        GraphError: One of the two cannot be called.
    """
    takes = "a key and the number of subtasks"
    check_function(partitioner, Partitioner, "partition_custom", "partition", takes=takes, count=2)
    check_function(key, KeySelector, "partition_custom", "get_key")
    choose = partitioner.partition if isinstance(partitioner, Partitioner) else partitioner
    key_of = key.get_key if isinstance(key, KeySelector) else key
    return RowPartitioner(choose, key_of, location)
