"""Hand-over of records: copies of a user function's results, which the receiver owns.

Two rules hold wherever a function is called record by record. It never runs inside an iterator
(``map``, ``filter``, a generator): these take a StopIteration of the function for their own end,
and the rest of the slice would vanish. And a result that can change is copied *before* the function
is called again: the function may return the same object each time, or keep it in state. The slice
as a whole is then fitted to the declared type.

A function that cannot keep anything, because it names nothing outside itself, needs no copies; its
code is checked once for that. ``enable_object_reuse`` does without copies altogether.

Source: Flink, ExecutionConfig.enableObjectReuse.
"""

import builtins
import dis
from collections.abc import Callable, Iterable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FunctionType, MethodDescriptorType
from typing import Any, Final

from weir.common.batch import Batch, Timestamps
from weir.common.ownership import IMMUTABLE, own
from weir.common.typeinfo import TypeInformation
from weir.errors import SchemaError
from weir.operators.base import OperatorContext
from weir.operators.user_code import short_repr

# Built-in functions that keep none of their arguments.
_KEEP_NOTHING: Final = frozenset(
    {abs, all, any, bool, bytes, dict, divmod, float, int, isinstance, len, list, max, min, repr}
    | {round, set, sorted, str, sum, tuple}
)
# A generator and a coroutine keep their variables from one record to the next.
_LIVES_ON: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_REACH_OUTSIDE = ("LOAD_NAME", "STORE_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME")


class HandOver:
    """Makes the records of one output of an operator."""

    __slots__ = ("_kind", "_label", "own")

    def __init__(
        self,
        ctx: OperatorContext,
        kind: TypeInformation | None = None,
        function: Callable[..., Any] | None = None,
    ) -> None:
        """The hand-over of records of ``kind``; None: no type is declared.

        ``function`` is the function called for each record, if it is always the same.
        """
        self._kind = kind
        self._label = ctx.label
        shares = ctx.object_reuse or (function is not None and keeps_nothing(function))
        self.own: Callable[[Any], Any] | None = None if shares else own  # None: no need to copy.

    def of_each(self, call: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
        """The results of ``call`` for each row."""
        own = self.own
        if own is None:
            return [call(row) for row in rows]
        return [v if type(v := call(row)) in IMMUTABLE else own(v) for row in rows]

    def of_all(self, call: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
        """The records of the iterables ``call(row)``, in order; None: no records."""
        own = self.own
        if own is None:
            return [value for row in rows for value in call(row) or ()]
        return [
            value if type(value) in IMMUTABLE else own(value)
            for row in rows
            for value in call(row) or ()
        ]

    def batch(self, rows: list[Any], timestamps: Timestamps | None = None) -> Batch:
        """The records as a batch of the declared type.

        Raises:
            SchemaError: A record does not fit; the message names operator, record and field.
        """
        kind = self._kind
        if kind is not None:
            try:
                rows = kind.normalise_all(rows)
            except SchemaError:
                self._refuse(kind, rows)
                raise
        return Batch.of_rows(rows, kind, timestamps)

    def _refuse(self, kind: TypeInformation, rows: list[Any]) -> None:
        """Raise the error that names the record which does not fit."""
        normalise = kind.normaliser()
        for row in rows:
            try:
                normalise(row)
            except SchemaError as error:
                raise SchemaError(
                    f"{self._label} made the record {short_repr(row)}, which does not fit its "
                    f"declared type: {error}"
                ) from error


def keeps_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function certainly keeps no reference to what it gets or returns.

    True of plain functions that name nothing outside themselves but built-in functions of that
    kind, and of methods of immutable classes, such as ``str.split``.
    """
    if isinstance(function, MethodDescriptorType):
        return function.__objclass__ in IMMUTABLE
    if not isinstance(function, FunctionType):
        return _is_built_in(function)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return (
        IMMUTABLE.issuperset(map(type, defaults))
        and not function.__closure__
        and _stays_inside(function.__code__, function.__globals__)
    )


def _stays_inside(code: CodeType, names: dict[str, Any]) -> bool:
    if code.co_flags & _LIVES_ON:
        return False
    for instruction in dis.get_instructions(code):
        if instruction.opname in _REACH_OUTSIDE:
            return False
        if instruction.opname == "LOAD_GLOBAL":
            value = names.get(instruction.argval, getattr(builtins, instruction.argval, None))
            if type(value) not in IMMUTABLE and not _is_built_in(value):
                return False
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return all(_stays_inside(each, names) for each in inner)


def _is_built_in(value: Any) -> bool:
    try:
        return value in _KEEP_NOTHING
    except TypeError:  # An unhashable value is no built-in function.
        return False
