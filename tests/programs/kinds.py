"""Kinds of keys and values: how they are drawn, written down, declared and changed."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tests.programs.values import Colour


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: the type that declares it, and expressions that make another value of it.

    ``changes`` are pairs of the resulting kind and an expression of ``v``.
    """

    draw: "st.SearchStrategy[Any]"
    types: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()
    misfit: str = ""  # A type that no value fits.


_NOON = dt.datetime(2024, 2, 29, 12, 0, 1, 5)
_SMALL = st.integers(-3, 9)

KEYS: dict[str, Kind] = {
    "int": Kind(st.integers(0, 3), ("Types.LONG()", "Types.INT()"), misfit="Types.STRING()"),
    "text": Kind(st.sampled_from(["", "a", "ß€😀"]), ("Types.STRING()",), misfit="Types.LONG()"),
    "bool": Kind(st.booleans(), ("Types.BOOLEAN()",), misfit="Types.LONG()"),
    "none": Kind(st.none()),
    "float": Kind(st.sampled_from([0.5, 2.0, -1e300]), ("Types.DOUBLE()",)),
    "decimal": Kind(st.sampled_from([Decimal("1.5"), Decimal(2)]), ("Types.BIG_DEC()",)),
    "bytes": Kind(st.sampled_from([b"", b"\x00\xff"]), ("Types.PRIMITIVE_ARRAY(Types.BYTE())",)),
    "big": Kind(st.sampled_from([2**70, -(2**65), 5]), ("Types.BIG_INT()",)),
    "date": Kind(
        st.sampled_from([dt.date(1969, 12, 31), dt.date(2024, 2, 29)]), ("Types.SQL_DATE()",)
    ),
    "datetime": Kind(st.sampled_from([_NOON, dt.datetime(1960, 1, 1)]), ("Types.SQL_TIMESTAMP()",)),
    "uuid": Kind(st.sampled_from([UUID(int=0), UUID(int=7)])),
    "enum": Kind(st.sampled_from(Colour)),
    "tuple": Kind(
        st.tuples(st.integers(0, 1), st.sampled_from(["x", ""])),
        ("Types.TUPLE([Types.LONG(), Types.STRING()])",),
    ),
    "mixed": Kind(st.sampled_from([1, True, 1.0, None, "1", Decimal(1), (1,)])),
    "any": Kind(st.none()),  # Of streams whose keys are of several kinds; no source draws it.
}
SOURCE_KEYS = tuple(kind for kind in KEYS if kind != "any")

_TEXT = ("text", "repr(v)")
VALUES: dict[str, Kind] = {
    "int": Kind(
        _SMALL,
        ("Types.LONG()", "Types.INT()", "Types.BIG_INT()"),
        (
            ("int", "v * 2 + 1"),
            ("float", "v / 3"),
            ("ints", "[v, v]"),
            ("pair", '(v, "a")'),
            ("mapping", '{"a": v}'),
            ("big", "v * 10**20"),
            ("decimal", "Decimal(v) / 8"),
            ("numpy", "np.int64(v)"),
        ),
        misfit="Types.STRING()",
    ),
    "float": Kind(
        st.sampled_from([0.1, -0.0, float("nan"), 1e300, 2.5]),
        ("Types.DOUBLE()",),
        (("float", "v * 0.5"), _TEXT),
        misfit="Types.STRING()",
    ),
    "single": Kind(st.sampled_from([0.1, 2.5, -0.0]), ("Types.FLOAT()",), (("float", "v * 3"),)),
    "numpy": Kind(_SMALL, ("Types.LONG()",), (("int", "int(v)"),)),
    "text": Kind(
        st.sampled_from(["", "a", "ß€😀"]),
        ("Types.STRING()",),
        (("text", 'v + "ß"'), ("int", "len(v)")),
        misfit="Types.LONG()",
    ),
    "bytes": Kind(
        st.sampled_from([b"", b"\x00\xff"]),
        ("Types.PRIMITIVE_ARRAY(Types.BYTE())",),
        (("bytes", 'v + b"1"'), _TEXT),
    ),
    "big": Kind(
        st.sampled_from([10**30, 0]), ("Types.BIG_INT()",), (("big", "v + 1"),), "Types.LONG()"
    ),
    "decimal": Kind(
        st.sampled_from([Decimal("1.50"), Decimal("NaN"), Decimal("-0")]),
        ("Types.BIG_DEC()",),
        (_TEXT,),
    ),
    "moment": Kind(
        st.sampled_from([_NOON, dt.datetime(1960, 1, 1)]), ("Types.SQL_TIMESTAMP()",), (_TEXT,)
    ),
    "ints": Kind(
        st.lists(_SMALL, max_size=3),
        ("Types.LIST(Types.LONG())",),
        (("ints", "v + [1]"), ("int", "sum(v)"), ("nested", "[v, v]")),
        misfit="Types.LIST(Types.STRING())",
    ),
    "nested": Kind(
        st.lists(st.lists(_SMALL, max_size=2), max_size=2),
        ("Types.LIST(Types.LIST(Types.LONG()))",),
        (("nested", "v + [[0]]"), ("int", "len(v)")),
    ),
    "pair": Kind(
        st.tuples(_SMALL, st.sampled_from(["", "b"])),
        ("Types.TUPLE([Types.LONG(), Types.STRING()])",),
        (("int", "v[0]"), _TEXT),
    ),
    "mapping": Kind(
        st.dictionaries(st.sampled_from(["a", "b"]), _SMALL, max_size=2),
        ("Types.MAP(Types.STRING(), Types.LONG())",),
        (("mapping", '{**v, "c": 1}'), ("int", "len(v)")),
    ),
    "any": Kind(
        st.sampled_from([None, 1, True, 0.5, "", b"b", [1, [2]], {"a": [1]}, (1, [2])]),
        (),
        (_TEXT, ("any", "v")),
    ),
}


def literal(value: Any) -> str:
    """The source text of a value."""
    if isinstance(value, float) and value != value:
        return 'float("nan")'
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, dt.datetime | dt.date):
        return repr(value).replace("datetime.", "dt.", 1)
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in value.items())}}}"
    return repr(value)


# Records of three fields ------------------------------------------------------------------------

FORMS = ("tuple", "list", "dict", "row")
_FIELDS = ("k", "t", "v")


def field(form: str, name: str, record: str = "r") -> str:
    """The expression of a field of a record."""
    match form:
        case "dict":
            return f'{record}["{name}"]'
        case "row":
            return f"{record}.{name}"
    return f"{record}[{_FIELDS.index(name)}]"


def record(form: str, key: str, time: str, value: str) -> str:
    """The expression that makes a record."""
    match form:
        case "list":
            return f"[{key}, {time}, {value}]"
        case "dict":
            return f'{{"k": {key}, "t": {time}, "v": {value}}}'
        case "row":
            return f"Row(k={key}, t={time}, v={value})"
        case "bare":
            return f"Row({key}, {time}, {value})"
    return f"({key}, {time}, {value})"


def position(form: str, name: str) -> str:
    """The position or name by which ``sum`` and its kin take a field."""
    return f'"{name}"' if form in ("dict", "row") else str(_FIELDS.index(name))
