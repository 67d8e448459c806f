"""The comparison of two outputs: lost, duplicated, unexpected and out of order, apart."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from weir.errors import UserError
from weir.operators.user_code import short_repr

SAMPLES = 5  # Of each kind, in the text of a difference.


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The records by which an output differs from the expected one; a repeated one counts often."""

    lost: tuple[Any, ...] = ()
    duplicated: tuple[Any, ...] = ()  # Expected, but more often than expected.
    unexpected: tuple[Any, ...] = ()  # Not expected at all.
    out_of_order: tuple[Any, ...] = ()  # Behind a record of their key that should follow them.

    @property
    def is_empty(self) -> bool:
        """Whether the outputs are the same."""
        return not (self.lost or self.duplicated or self.unexpected or self.out_of_order)

    def __str__(self) -> str:
        kinds = {
            "lost": self.lost,
            "duplicated": self.duplicated,
            "unexpected": self.unexpected,
            "out of order": self.out_of_order,
        }
        return "; ".join(f"{kind} {_listed(records)}" for kind, records in kinds.items())


def compare_outputs(
    expected: Iterable[Any],
    actual: Iterable[Any],
    *,
    key: Callable[[Any], Hashable] | None = None,
) -> OutputDifference:
    """Compare an output with the expected one, such as that of an undisturbed run.

    Args:
        key: Records of one key have to be in the same order on both sides; None compares no order,
            since subtasks do not wait for each other.

    Raises:
        UserError: A record cannot be compared, because it cannot be hashed.
    """
    wanted, came = list(expected), list(actual)
    left = Counter(map(_identity, wanted))
    known = set(left)
    extra: dict[bool, list[Any]] = {True: [], False: []}
    kept: list[Any] = []
    for record in came:
        same = _identity(record)
        if left[same] > 0:
            left[same] -= 1
            kept.append(record)
        else:
            extra[same in known].append(record)
    lost: list[Any] = []
    for record in reversed(wanted):  # The last ones: those before were matched first.
        if left[_identity(record)] > 0:
            left[_identity(record)] -= 1
            lost.append(record)
    late = [] if key is None else _out_of_order(wanted, kept, key)
    return OutputDifference(tuple(lost[::-1]), tuple(extra[True]), tuple(extra[False]), tuple(late))


def assert_same_output(
    expected: Iterable[Any],
    actual: Iterable[Any],
    *,
    key: Callable[[Any], Hashable] | None = None,
) -> None:
    """Check that an output is the expected one; arguments as for ``compare_outputs``.

    Raises:
        AssertionError: It differs; the message says by what.
    """
    difference = compare_outputs(expected, actual, key=key)
    if not difference.is_empty:
        raise AssertionError(str(difference))


def _out_of_order(wanted: list[Any], kept: list[Any], key: Callable[[Any], Hashable]) -> list[Any]:
    """The records behind one of their key that should follow them; equal ones keep their order."""
    places: defaultdict[Any, list[int]] = defaultdict(list)
    for place, record in reversed(list(enumerate(wanted))):
        places[_identity(record)].append(place)
    furthest: dict[Hashable, int] = {}
    late: list[Any] = []
    for record in kept:
        place, of = places[_identity(record)].pop(), key(record)
        if place < furthest.get(of, -1):
            late.append(record)
        else:
            furthest[of] = place
    return late


def _identity(value: Any) -> Hashable:
    """A hashable value that equal records of the same types have in common."""
    kind = type(value)
    if isinstance(value, dict):
        return kind, frozenset((_identity(k), _identity(v)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(_identity, value))
    if isinstance(value, list | tuple):
        names = tuple(getattr(value, "field_names", None) or ())
        return kind, names, tuple(map(_identity, value))
    if isinstance(value, float) and math.isnan(value):
        return kind, "nan"
    try:
        hash(value)
    except TypeError as error:
        raise UserError(
            f"the record {short_repr(value)} cannot be compared ({error}); give its class __eq__ "
            "and __hash__, such as @dataclass(frozen=True), or compare plain values of it"
        ) from error
    return kind, value


def _listed(records: tuple[Any, ...]) -> str:
    if not records:
        return "0"
    more = ", ..." if len(records) > SAMPLES else ""
    return f"{len(records)} ({', '.join(map(short_repr, records[:SAMPLES]))}{more})"
