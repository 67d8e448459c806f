"""Types: values to Arrow and back."""

import datetime as dt
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.common.row import Row
from weir.common.typeinfo import TypeInformation, Types, type_from_wire
from weir.common.types.dynamic import DYNAMIC
from weir.errors import SchemaError

_instants = st.datetimes(
    min_value=dt.datetime(1700, 1, 1), max_value=dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)
)
BASIC: list[tuple[TypeInformation, st.SearchStrategy[Any]]] = [
    (Types.STRING(), st.text(st.characters(codec="utf-8"))),
    (Types.BYTE(), st.integers(-128, 127)),
    (Types.BOOLEAN(), st.booleans()),
    (Types.SHORT(), st.integers(-(2**15), 2**15 - 1)),
    (Types.INT(), st.integers(-(2**31), 2**31 - 1)),
    (Types.LONG(), st.integers(-(2**63), 2**63 - 1)),
    (Types.FLOAT(), st.floats(allow_nan=False, width=32)),
    (Types.DOUBLE(), st.floats(allow_nan=False)),
    (Types.CHAR(), st.characters(codec="utf-8")),
    (Types.BIG_INT(), st.integers()),
    (Types.BIG_DEC(), st.decimals(allow_nan=False)),
    (Types.INSTANT(), _instants),
    (Types.SQL_DATE(), st.dates()),
    (Types.SQL_TIME(), st.times()),
    (Types.SQL_TIMESTAMP(), st.datetimes()),
    (Types.PICKLED_BYTE_ARRAY(), st.sets(st.integers()) | st.complex_numbers(allow_nan=False)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), st.binary()),
    (Types.PRIMITIVE_ARRAY(Types.INT()), st.lists(st.integers(-5, 5), max_size=4)),
    (Types.BASIC_ARRAY(Types.STRING()), st.lists(st.none() | st.just("x"), max_size=4)),
]


def _composite(
    inner: st.SearchStrategy[tuple[TypeInformation, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[TypeInformation, st.SearchStrategy[Any]]]:
    def listed(pair: tuple[TypeInformation, st.SearchStrategy[Any]]) -> Any:
        return Types.LIST(pair[0]), st.lists(st.none() | pair[1], max_size=3)

    def mapped(pair: tuple[TypeInformation, st.SearchStrategy[Any]]) -> Any:
        values = st.dictionaries(st.text("ab", max_size=2), st.none() | pair[1], max_size=3)
        return Types.MAP(Types.STRING(), pair[0]), values

    def rows(pairs: list[tuple[TypeInformation, st.SearchStrategy[Any]]]) -> Any:
        kinds, values = [pair[0] for pair in pairs], [st.none() | pair[1] for pair in pairs]
        names = [f"n{index}" for index in range(len(pairs))]
        named = Types.ROW_NAMED(names, kinds)
        return st.sampled_from(
            [
                (Types.TUPLE(kinds), st.tuples(*values)),
                (Types.ROW(kinds), st.tuples(*values).map(lambda v: Row(*v))),
                (named, st.tuples(*values).map(lambda v: Row(**dict(zip(names, v, strict=True))))),
            ]
        )

    return inner.map(listed) | inner.map(mapped) | st.lists(inner, max_size=3).flatmap(rows)


types = st.recursive(st.sampled_from(BASIC), _composite, max_leaves=5)


@given(types.flatmap(lambda pair: st.tuples(st.just(pair[0]), st.lists(st.none() | pair[1]))))
def test_values_of_every_type_come_back(case: tuple[TypeInformation, list[Any]]) -> None:
    kind, values = case
    array = kind.to_arrow(values)
    assert array.type == kind.arrow_type
    assert len(array) == len(values)
    assert kind.from_arrow(array) == values
    half = len(values) // 2
    assert kind.from_arrow(array.slice(half)) == values[half:]
    assert [type(v) for v in kind.from_arrow(array)] == [type(v) for v in values]


@given(types.map(lambda pair: pair[0]))
def test_a_type_comes_back_from_its_wire_form(kind: TypeInformation) -> None:
    assert type_from_wire(kind.to_wire()) == kind
    assert pickle.loads(pickle.dumps(kind)) == kind


@given(types.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1])))
def test_a_copy_is_equal_and_shares_nothing_that_can_change(
    case: tuple[TypeInformation, Any],
) -> None:
    kind, value = case
    if kind.copier is None:
        assert not isinstance(value, (list, dict, set))
        return
    copied = kind.copier(value)
    assert copied == value
    assert type(copied) is type(value)
    assert not _mutable_parts(copied) & _mutable_parts(value)


def _mutable_parts(value: Any) -> set[int]:
    if isinstance(value, dict):
        return {id(value)}.union(*map(_mutable_parts, value.values()))
    if isinstance(value, (list, tuple)):
        own = {id(value)} if isinstance(value, list) else set()
        return own.union(*map(_mutable_parts, value))
    return {id(value)} if isinstance(value, set) else set()


def test_nan_comes_back() -> None:
    kind = Types.LIST(Types.DOUBLE())
    [[value]] = kind.from_arrow(kind.to_arrow([[math.nan]]))
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (Types.INT(), 2**31, "2147483648"),
        (Types.INT(), "7", "'7' of type str does not fit INT"),
        (Types.INT(), True, "True of type bool does not fit INT"),
        (Types.LONG(), True, "True of type bool does not fit LONG"),
        (Types.LONG(), 1 << 63, "9223372036854775808 of type int does not fit LONG"),
        (Types.LONG(), 1.5, "1.5 of type float"),
        (Types.BOOLEAN(), 1, "BOOLEAN"),
        (Types.STRING(), b"x", "b'x' of type bytes"),
        (Types.STRING(), "\ud800", "STRING"),
        (Types.CHAR(), "ab", "one character"),
        (Types.DOUBLE(), Decimal(1), "DOUBLE"),
        (Types.BIG_INT(), 1.0, "BIG_INT"),
        (Types.INSTANT(), dt.datetime(2024, 1, 1), "with a zone"),
        (Types.SQL_TIMESTAMP(), dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "without a zone"),
        (Types.SQL_DATE(), dt.datetime(2024, 1, 1), "SQL_DATE"),
        (Types.LIST(Types.INT()), [1, "x"], "element: 'x'"),
        (Types.LIST(Types.INT()), "xy", "LIST"),
        (Types.PRIMITIVE_ARRAY(Types.INT()), [1, None], "BASIC_ARRAY"),
        (Types.MAP(Types.STRING(), Types.INT()), {"a": "x"}, "value: 'x'"),
        (Types.MAP(Types.STRING(), Types.INT()), {1: 1}, "key: 1"),
        (Types.MAP(Types.STRING(), Types.INT()), {None: 1}, "None cannot be a key"),
        (Types.MAP(Types.STRING(), Types.INT()), [1], "no dict"),
        (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.INT()]), (1, "x"), "field b: 'x'"),
        (
            Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.INT()]),
            (1,),
            "1 fields instead of the 2 of its type",
        ),
        (Types.ROW_NAMED(["a"], [Types.INT()]), Row(z=1), "no field a; it has z"),
        (Types.ROW([Types.INT()]), 1, "no row"),
        (Types.TUPLE([Types.LIST(Types.INT())]), ([1.5],), "field f0: element: 1.5"),
        (Types.PICKLED_BYTE_ARRAY(), (n for n in ()), "cannot be pickled"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_field(
    kind: TypeInformation, value: Any, named: str
) -> None:
    for values in ([value], [None, value]):  # A column without nulls may be made in another way.
        with pytest.raises(SchemaError) as caught:
            kind.to_arrow(values)
        assert named in str(caught.value)


def test_a_row_fits_by_name_in_any_order() -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    rows = [Row(b="x", a=1), {"b": "y", "a": 2}, (3, "z"), [4, "w"]]
    assert kind.from_arrow(kind.to_arrow(rows)) == [(1, "x"), (2, "y"), (3, "z"), (4, "w")]
    assert kind.from_arrow(kind.to_arrow(rows))[0].b == "x"


def test_numpy_numbers_fit() -> None:
    numbers = pa.array([1, 2]).to_numpy()
    assert Types.LONG().from_arrow(Types.LONG().to_arrow(list(numbers))) == [1, 2]


@pytest.mark.parametrize("wire", ["FLOOF", ["LIST"], ["MAP", "INT"], 7, None])
def test_an_unknown_type_is_refused(wire: Any) -> None:
    with pytest.raises(SchemaError, match="no type"):
        type_from_wire(wire)


def test_field_names_must_match_the_types_and_differ() -> None:
    with pytest.raises(SchemaError, match=r"1 field names \(a\) for 2"):
        Types.ROW_NAMED(["a"], [Types.INT(), Types.INT()])
    with pytest.raises(SchemaError, match="repeat"):
        Types.ROW_NAMED(["a", "a"], [Types.INT(), Types.INT()])


def test_only_a_type_that_holds_pickles_says_so() -> None:
    assert Types.MAP(Types.STRING(), Types.LIST(Types.PICKLED_BYTE_ARRAY())).has_pickles
    assert Types.ROW([Types.PICKLED_BYTE_ARRAY()]).has_pickles
    assert not Types.ROW([Types.STRING(), Types.LIST(Types.BIG_DEC())]).has_pickles


AWKWARD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.sampled_from([2**31, -(2**31) - 1, 2**63, 2**53 + 1, 2**25 + 1, 10**4500]),
    st.floats() | st.sampled_from([-0.0, 1e39, 0.1]),
    st.decimals(),
    st.text(max_size=2) | st.just("\ud800"),
    st.binary(max_size=2),
    st.dates(),
    st.times(timezones=st.none() | st.just(dt.UTC)),
    st.datetimes(timezones=st.none() | st.timezones()),
    st.sampled_from([np.int8(3), np.int64(2**40), np.float32(0.1), np.bool_(True), np.str_("n")]),
)


def _as_text(value: Any) -> str:
    """The value with its classes, so that nan is nan, and 1 is not 1.0."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_as_text(k)}: {_as_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_as_text, value))})"
    return f"{type(value).__name__} {value!r}"


def _outcome(action: Callable[[], Any]) -> str:
    try:
        return _as_text(action())
    except SchemaError:
        return "refused"


@settings(max_examples=300)
@given(types.flatmap(lambda pair: st.tuples(st.just(pair[0]), st.none() | pair[1] | AWKWARD)))
def test_the_normal_form_of_a_value_is_what_comes_back_of_it(
    case: tuple[TypeInformation, Any],
) -> None:
    kind, value = case
    if kind.has_pickles:
        return  # Pickles are not read back only to see that they can be.
    stored = _outcome(lambda: kind.from_arrow(kind.to_arrow([value]))[0])
    assert _outcome(lambda: kind.normaliser()(value)) == stored
    assert _outcome(lambda: kind.normalise_all([value])[0]) == stored
    assert _outcome(lambda: DYNAMIC.normaliser()(value)) == _outcome(
        lambda: DYNAMIC.from_arrow(DYNAMIC.to_arrow([value]))[0]
    )


@given(types.flatmap(lambda pair: st.tuples(st.just(pair[0]), st.lists(pair[1], max_size=3))))
def test_what_normal_values_share_cannot_be_changed(
    case: tuple[TypeInformation, list[Any]],
) -> None:
    kind, values = case
    for made in (kind.normalise_all(list(values)), list(map(kind.normaliser(), values))):
        assert not _mutable_parts(made[:]) & _mutable_parts(values)
    for value in () if kind.has_pickles else values:
        assert not _mutable_parts(DYNAMIC.normaliser()([value])) & _mutable_parts([value])


@pytest.mark.parametrize(
    ("kind", "given", "held"),
    [
        (Types.TUPLE([Types.INT(), Types.INT()]), [1, 2], (1, 2)),
        (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.INT()]), (1, 2), Row(a=1, b=2)),
        (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.INT()]), {"b": 2}, Row(a=None, b=2)),
        (Types.FLOAT(), 0.1, 0.10000000149011612),
        (Types.LONG(), np.int64(5), 5),
        (Types.LIST(Types.DOUBLE()), (1, 2.5), [1.0, 2.5]),
    ],
)
def test_a_value_becomes_what_its_type_holds(kind: TypeInformation, given: Any, held: Any) -> None:
    assert _as_text(kind.normaliser()(given)) == _as_text(held)
    assert _as_text(kind.normalise_all([given])) == _as_text([held])


def test_a_field_that_the_type_does_not_have_is_refused() -> None:
    kind = Types.ROW_NAMED(["a"], [Types.INT()])
    with pytest.raises(SchemaError, match="has a field b that the type does not have"):
        kind.normaliser()({"a": 1, "b": 2})
