"""Key selectors and partitioners: the arguments of ``key_by`` and ``partition_custom`` on edges."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weir.common.abstract import check_complete
from weir.common.typeinfo import TypeInformation
from weir.errors import GraphError
from weir.operators.functions import Function, KeySelector, Partitioner
from weir.operators.keys import ColumnKeySelector, FunctionKeySelector

KeyArgument: TypeAlias = KeySelector | Callable[[Any], Any] | str | Sequence[str]
Selector: TypeAlias = ColumnKeySelector | FunctionKeySelector


def selector_of(key: KeyArgument, key_type: TypeInformation | None = None) -> Selector:
    """The selector for a function, a ``KeySelector``, a column name or several.

    Raises:
        GraphError: ``key`` is none of these, or columns are given together with a ``key_type``.
    """
    if isinstance(key, KeySelector):
        check_complete(key)
        return FunctionKeySelector(key.get_key, key_type)
    if callable(key):
        return FunctionKeySelector(key, key_type)
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise GraphError(
            f"key_by cannot use {key!r}; give it a function, a KeySelector, a column name or a "
            "list of column names"
        )
    if len(set(names)) != len(names):
        raise GraphError(f"key_by names a column twice: {', '.join(names)}")
    if key_type is not None:
        raise GraphError("key_type is for key functions; a key column has the column's own type")
    return ColumnKeySelector(names)


@dataclass(frozen=True, slots=True)
class RowPartitioner:
    """A custom partitioner with its key function: one call of each per record."""

    choose: Callable[[Any, int], int]
    key_of: Callable[[Any], Any]

    def partition(self, row: Any, channel_count: int) -> int:
        """The index of the channel that ``row`` goes to."""
        return self.choose(self.key_of(row), channel_count)


def row_partitioner(
    partitioner: Partitioner | Callable[[Any, int], int],
    key: KeySelector | Callable[[Any], Any],
) -> RowPartitioner:
    """The row partitioner of two objects or plain functions.

    Raises:
        GraphError: One of the two cannot be called.
    """
    for given in (partitioner, key):
        if isinstance(given, Function):
            check_complete(given)
    choose = partitioner.partition if isinstance(partitioner, Partitioner) else partitioner
    key_of = key.get_key if isinstance(key, KeySelector) else key
    if not callable(choose) or not callable(key_of):
        raise GraphError("partition_custom takes a function of (key, count) and a key function")
    return RowPartitioner(choose, key_of)
