"""Keys, their canonical bytes, their hash and who owns their group."""

import datetime as dt
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import ConfigError, CorruptStateError, KeyTypeError, RestoreError
from weir.graph.key_groups import (
    decode_key,
    default_max_parallelism,
    encode_key,
    key_group,
    key_group_range,
    operator_index,
    weir_hash,
)
from weir.ids import KeyGroupRange


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    LOW = 1


GOLDEN: list[tuple[Any, str, int]] = [
    (None, "00", 0),
    (False, "0100", 504687960),
    (True, "0101", 4287858871),
    (0, "020000000000000000", 0),
    (1, "020100000000000000", 885181228),
    (-1, "02ffffffffffffffff", 1266835233),
    (42, "022a00000000000000", 2386713036),
    (9223372036854775807, "02ffffffffffffff7f", 2838556138),
    (-9223372036854775808, "020000000000000080", 2939266195),
    (9223372036854775808, "03000000000000008000", 1819899052),
    (-9223372036854775809, "03ffffffffffffff7fff", 4290584134),
    (2**100, "0300000000000000000000000010", 2374500236),
    (0.0, "040000000000000000", 663330532),
    (-0.0, "040000000000000000", 663330532),
    (1.0, "04000000000000f03f", 1046835186),
    (1.5, "04000000000000f83f", 328366545),
    (float("inf"), "04000000000000f07f", 598639149),
    (Decimal("1.50"), "053135452d31", 3345831942),
    (Decimal("0.00"), "05304530", 2784646985),
    (Decimal("-12E5"), "052d31324535", 477444699),
    ("", "06", 3479270427),
    ("a", "0661", 2590006900),
    ("hello", "0668656c6c6f", 3394032097),
    ("ä", "06c3a4", 2384648489),
    ("12345678", "063132333435363738", 2226390622),
    ("123456789", "06313233343536373839", 1867589909),
    (b"", "07", 3738869497),
    (b"a", "0761", 3374775625),
    (dt.date(1969, 12, 31), "0affffffff", 169885787),
    (dt.date(2013, 1, 1), "0a5a3d0000", 4284683452),
    (dt.time(1, 2, 3, 4), "0bc478e8dd00000000", 2886439475),
    (dt.datetime(2013, 1, 1, 5, 6, 7, 8), "0cc8ed591633d20400", 1325899390),
    (dt.datetime(2012, 12, 31, 22, tzinfo=dt.UTC), "0d007870222dd20400", 3373192170),
    (UUID(int=5), "0e00000000000000000000000000000005", 2227128862),
    ((), "10", 4266115055),
    ((1,), "1009000000020100000000000000", 1836140968),
    ((1, "a"), "1009000000020100000000000000020000000661", 1084768362),
    (((1,), None), "100e00000010090000000201000000000000000100000000", 1241065786),
]

scalar_keys = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.text(),
    st.binary(max_size=40),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(
        min_value=dt.datetime(2, 1, 1),
        max_value=dt.datetime(9998, 1, 1),
        timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))]),
    ),
    st.uuids(),
    st.sampled_from([*Colour, *Rank]),
)
keys = st.recursive(scalar_keys, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)


@pytest.mark.parametrize(("key", "encoded", "hashed"), GOLDEN, ids=repr)
def test_encoding_and_hash_stay_what_they_were_in_the_first_version(
    key: Any, encoded: str, hashed: int
) -> None:
    assert encode_key(key).hex() == encoded
    assert weir_hash(key) == hashed


@given(keys)
def test_a_key_comes_back_from_its_canonical_bytes(key: Any) -> None:
    decoded = decode_key(encode_key(key))
    assert decoded == key
    assert type(decoded) is type(key)
    assert encode_key(decoded) == encode_key(key)
    assert weir_hash(decoded) == weir_hash(key)


@given(keys, keys)
def test_keys_of_one_type_have_equal_bytes_exactly_when_they_are_equal(a: Any, b: Any) -> None:
    if type(a) is type(b) and not isinstance(a, tuple):
        assert (encode_key(a) == encode_key(b)) == (a == b)


@given(keys)
def test_a_hash_fits_32_unsigned_bits(key: Any) -> None:
    assert 0 <= weir_hash(key) < 2**32


def test_equal_looking_keys_of_different_types_are_different_keys() -> None:
    alike = [1, True, 1.0, Decimal(1), Rank.LOW, "1", b"1", (1,)]
    assert len({encode_key(key) for key in alike}) == len(alike)
    assert len({weir_hash(key) for key in alike}) == len(alike)


def test_one_value_written_differently_is_one_key() -> None:
    cest = dt.timezone(dt.timedelta(hours=2))
    assert encode_key(-0.0) == encode_key(0.0)
    assert encode_key(Decimal("1.50")) == encode_key(Decimal("1.5"))
    assert encode_key(Decimal("1E3")) == encode_key(Decimal(1000))
    assert encode_key(Decimal("-0.0")) == encode_key(Decimal(0))
    assert encode_key(dt.datetime(2024, 6, 1, 14, tzinfo=cest)) == encode_key(
        dt.datetime(2024, 6, 1, 12, tzinfo=dt.UTC)
    )


def test_a_decimal_longer_than_the_context_keeps_every_digit() -> None:
    long = Decimal("1." + "1" * 60)
    assert decode_key(encode_key(long)) == long


def test_a_naive_and_an_aware_datetime_are_different_keys() -> None:
    naive = dt.datetime(2024, 6, 1, 12)
    assert encode_key(naive) != encode_key(naive.replace(tzinfo=dt.UTC))


class _Local:
    pass


class _Text(str):
    pass


@pytest.mark.parametrize(
    "key",
    [_Local(), _Text("a"), [1], {"a": 1}, {1}, 1j, (1, [2]), dt.timedelta(1), bytearray(b"a")],
    ids=lambda key: type(key).__name__,
)
def test_a_key_without_canonical_encoding_is_refused_with_advice(key: Any) -> None:
    with pytest.raises(KeyTypeError, match="key_type"):
        weir_hash(key)
    with pytest.raises(KeyTypeError, match="key_type"):
        encode_key(key)


@pytest.mark.parametrize("key", [float("nan"), Decimal("NaN"), Decimal("sNaN")], ids=str)
def test_nan_is_refused(key: Any) -> None:
    with pytest.raises(KeyTypeError, match="NaN"):
        weir_hash(key)


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="Unicode"):
        weir_hash("\ud800")


def test_a_zoned_time_of_day_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="zone"):
        weir_hash(dt.time(1, tzinfo=dt.UTC))


def test_an_enum_of_a_function_is_refused_because_no_restore_could_find_it() -> None:
    hidden = Enum("hidden", ["A"])
    hidden.__qualname__ = "f.<locals>.hidden"
    with pytest.raises(KeyTypeError, match="top of a module"):
        weir_hash(hidden.A)


def test_an_enum_member_that_the_program_lost_fails_the_restore_by_name() -> None:
    encoded = encode_key(Colour.BLUE).replace(b"BLUE", b"TEAL")
    with pytest.raises(RestoreError, match=r"Colour\.TEAL"):
        decode_key(encoded)
    with pytest.raises(RestoreError, match="old name"):
        decode_key(encode_key(Colour.BLUE).replace(b"Colour", b"Coloxr"))


@pytest.mark.parametrize(
    "damaged", ["", "ff", "0102", "02ff", "0001", "06ff", "10ff000000", "0500", "0effff"]
)
def test_damaged_key_bytes_are_known_as_such(damaged: str) -> None:
    with pytest.raises(CorruptStateError, match="not an encoded key"):
        decode_key(bytes.fromhex(damaged))


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism", "ranges"),
    [
        (128, 3, [(0, 42), (43, 85), (86, 127)]),
        (128, 5, [(0, 25), (26, 51), (52, 76), (77, 102), (103, 127)]),
        (128, 7, [(0, 18), (19, 36), (37, 54), (55, 73), (74, 91), (92, 109), (110, 127)]),
        (10, 3, [(0, 3), (4, 6), (7, 9)]),
        (10, 4, [(0, 2), (3, 4), (5, 7), (8, 9)]),
    ],
)
def test_ranges_are_those_of_flink(
    max_parallelism: int, parallelism: int, ranges: list[tuple[int, int]]
) -> None:
    assigned = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
    assert assigned == [KeyGroupRange(first, last) for first, last in ranges]


@given(st.integers(1, 400), st.integers(1, 400))
def test_every_group_belongs_to_the_one_subtask_whose_range_holds_it(a: int, b: int) -> None:
    parallelism, max_parallelism = sorted((a, b))
    ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
    for group in range(max_parallelism):
        owner = operator_index(group, max_parallelism, parallelism)
        assert [i for i, owned in enumerate(ranges) if group in owned] == [owner]


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (128, 256),
        (171, 256),
        (200, 512),
        (1000, 2048),
        (21846, 1 << 15),
    ],
)
def test_default_max_parallelism_is_that_of_flink(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


def test_impossible_parallelism_is_refused() -> None:
    with pytest.raises(ConfigError, match="129"):
        key_group_range(128, 129, 0)
    with pytest.raises(ConfigError, match="index 3"):
        key_group_range(128, 3, 3)
    with pytest.raises(ConfigError, match="parallelism is 0"):
        default_max_parallelism(0)


def test_keys_spread_evenly_over_the_groups() -> None:
    for made in (range(12_800), (f"N{n}" for n in range(12_800))):
        counts = [0] * 128
        for key in made:
            counts[key_group(key, 128)] += 1
        assert min(counts) > 50
        assert max(counts) < 160  # 100 expected, standard deviation 10.
