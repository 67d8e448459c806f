"""Key groups: from a key to its group to its subtask, the same in every process and version.

State moves between subtasks in *key groups*: ``max_parallelism`` of them, each owned whole by one
subtask. A key belongs to the group ``weir_hash(key) % max_parallelism`` for as long as its state
lives, so neither encoding nor hash below may ever change; tests freeze both as golden vectors. The
vectorised implementation gives the same answers.

*Canonical bytes.* One tag byte for the type, then the value::

    None       00                        date       0A  int32 day number
    False      01 00                     time       0B  int64 microseconds of the day
    True       01 01                     datetime   0C  int64 microseconds since 1970, naive
    int        02  int64                            0D  the same in UTC, aware
    int        03  two's complement      UUID       0E  16 bytes, big-endian
    float      04  binary64              Enum       0F  tuple of module, qualified name, member
    Decimal    05  digits E exponent     tuple      10  per item: uint32 length, canonical bytes
    str        06  UTF-8
    bytes      07  as they are

Integers are little-endian; tag 03 is for those beyond 64 bits only. Equal means equal bytes: bool,
int, float and Decimal are types of their own, so ``1``, ``True``, ``1.0`` and ``Decimal(1)`` are
four keys although Python calls them equal. ``-0.0`` is ``0.0``, ``Decimal("1.50")`` is
``Decimal("1.5")``, an aware datetime is its instant in UTC. NaN equals nothing and is refused, as
is every type that the table lacks, subclasses included (equal objects could encode differently,
which would split a key in silence).

*Hash.* 64 bits wide inside: an int that fits 64 bits goes through the murmur3 finaliser; every
other key mixes the 8-byte little-endian words of its value (zero padded, tag and length mixed in
first) one by one. The words of a tuple are the 64-bit hashes of its items, so that key columns can
be hashed apart and then combined. ``weir_hash`` is the low 32 bits.

Source: Flink, KeyGroupRangeAssignment; MurmurHash3 fmix64 and MurmurHash64A by Austin Appleby.
"""

import datetime as dt
import importlib
import struct
from collections.abc import Callable, Hashable
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias, cast
from uuid import UUID

from weir.errors import ConfigError, CorruptStateError, KeyTypeError, RestoreError
from weir.ids import KeyGroupRange

NAN_KEY = (
    "NaN cannot be a key: it equals nothing, not even itself; filter such records out before "
    "key_by, or give them another key, such as None"
)

Key: TypeAlias = Hashable  # Of a type in the table above; any other is refused.

MAX_PARALLELISM_LIMIT = 1 << 15  # Flink's upper bound.

TAG_NONE = 0x00
TAG_BOOL = 0x01
TAG_INT = 0x02
TAG_BIG_INT = 0x03
TAG_FLOAT = 0x04
TAG_DECIMAL = 0x05
TAG_STR = 0x06
TAG_BYTES = 0x07
TAG_DATE = 0x0A
TAG_TIME = 0x0B
TAG_DATETIME = 0x0C
TAG_DATETIME_UTC = 0x0D
TAG_UUID = 0x0E
TAG_ENUM = 0x0F
TAG_TUPLE = 0x10

MASK_64 = (1 << 64) - 1
FMIX_1 = 0xFF51AFD7ED558CCD  # Murmur3's 64-bit finaliser.
FMIX_2 = 0xC4CEB9FE1A85EC53
WORD_MULTIPLIER = 0xC6A4A7935BD1E995  # MurmurHash64A.
WORD_SHIFT = 47

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)


def encode_key(key: Key) -> bytes:
    """The canonical bytes of ``key``: the same in every process, for ever.

    Raises:
        KeyTypeError: The key is NaN or of a type without a canonical encoding.
    """
    tag, value = _tagged(key)
    return bytes((tag,)) + value


def decode_key(encoded: bytes) -> Key:
    """The key whose canonical bytes these are; aware datetimes come back in UTC.

    Raises:
        CorruptStateError: The bytes are no key that ``encode_key`` made.
        RestoreError: An Enum member that the program no longer has.
    """
    decode = _DECODERS.get(encoded[0]) if encoded else None
    if decode is None:
        raise CorruptStateError(f"{encoded[:16]!r} is not an encoded key: unknown type tag")
    try:
        return decode(bytes(encoded[1:]))
    except (ValueError, ArithmeticError, struct.error) as cause:
        raise CorruptStateError(f"{encoded[:32]!r} is not an encoded key: {cause}") from cause


def weir_hash(key: Key) -> int:
    """A hash of ``key`` from 0 to 2**32 - 1 that is the same in every process, for ever.

    Raises:
        KeyTypeError: The key is NaN or of a type without a canonical encoding.
    """
    return hash_64(key) & 0xFFFF_FFFF


def key_group(key: Key, max_parallelism: int) -> int:
    """The key group of ``key`` among ``max_parallelism``."""
    return (hash_64(key) & 0xFFFF_FFFF) % max_parallelism


def key_group_range(max_parallelism: int, parallelism: int, index: int) -> KeyGroupRange:
    """The key groups of subtask ``index``: contiguous, and together a partition of all groups.

    Raises:
        ConfigError: Some subtask would own no key group, or ``index`` is out of range.
    """
    _check(max_parallelism, parallelism)
    if not 0 <= index < parallelism:
        raise ConfigError(f"subtask index {index} is not within parallelism {parallelism}")
    return KeyGroupRange(
        (index * max_parallelism + parallelism - 1) // parallelism,
        ((index + 1) * max_parallelism - 1) // parallelism,
    )


def operator_index(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """The subtask that owns ``key_group``."""
    return key_group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """The max parallelism of an operator that sets none: half more, a power of 2, 128 to 32768."""
    if not 1 <= parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigError(
            f"parallelism is {parallelism}; it must lie between 1 and {MAX_PARALLELISM_LIMIT}"
        )
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), 128), MAX_PARALLELISM_LIMIT)


def hash_64(key: Key) -> int:
    """The full 64 bits of which ``weir_hash`` is the low half."""
    kind = type(key)
    if kind is int:
        number = cast(int, key)
        if -(1 << 63) <= number < 1 << 63:
            return fmix_64(number & MASK_64)
    elif kind is tuple:
        items = cast(tuple[Key, ...], key)
        return mix_words(TAG_TUPLE, 8 * len(items), [hash_64(item) for item in items])
    tag, value = _tagged(key)
    return mix_words(tag, len(value), words_of(value))


def fmix_64(word: int) -> int:
    """Murmur3's finaliser over one unsigned 64-bit word: a bijection that mixes every bit."""
    word = (word ^ (word >> 33)) * FMIX_1 & MASK_64
    word = (word ^ (word >> 33)) * FMIX_2 & MASK_64
    return word ^ (word >> 33)


def mix_words(tag: int, length: int, words: "list[int] | tuple[int, ...]") -> int:
    """Mix the words of one value of ``length`` bytes into 64 bits."""
    mixed = (tag << 56 ^ length) * WORD_MULTIPLIER & MASK_64
    for word in words:
        word = word * WORD_MULTIPLIER & MASK_64
        word = (word ^ (word >> WORD_SHIFT)) * WORD_MULTIPLIER & MASK_64
        mixed = (mixed ^ word) * WORD_MULTIPLIER & MASK_64
    return fmix_64(mixed)


def words_of(value: bytes) -> tuple[int, ...]:
    """The 8-byte little-endian words of ``value``, the last one padded with zeros."""
    count = (len(value) + 7) // 8
    return struct.unpack(f"<{count}Q", value.ljust(8 * count, b"\0"))


def _check(max_parallelism: int, parallelism: int) -> None:
    if not 1 <= parallelism <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigError(
            f"parallelism {parallelism} and max parallelism {max_parallelism} do not fit: "
            f"1 <= parallelism <= max parallelism <= {MAX_PARALLELISM_LIMIT}"
        )


def _tagged(key: Key) -> tuple[int, bytes]:
    encode = _ENCODERS.get(type(key))
    if encode is not None:
        return encode(key)
    if isinstance(key, Enum):
        return _enum(key)
    raise KeyTypeError(
        f"{key!r} cannot be a key: {_kind_of(key)} has no canonical encoding. Declare key_type in"
        " key_by, or return None, bool, int, float, Decimal, str, bytes, date, time, datetime,"
        " UUID, an Enum member or a tuple of these from the key selector"
    )


def _int(key: int) -> tuple[int, bytes]:
    if -(1 << 63) <= key < 1 << 63:
        return TAG_INT, key.to_bytes(8, "little", signed=True)
    return TAG_BIG_INT, key.to_bytes(key.bit_length() // 8 + 1, "little", signed=True)


def _kind_of(key: object) -> str:
    kind = type(key)
    if kind.__module__ == "builtins":
        return f"a {kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _float(key: float) -> tuple[int, bytes]:
    if key != key:
        raise KeyTypeError(NAN_KEY)
    return TAG_FLOAT, struct.pack("<d", key + 0.0)  # -0.0 + 0.0 is 0.0.


def _decimal(key: Decimal) -> tuple[int, bytes]:
    if key.is_nan():
        raise KeyTypeError(NAN_KEY)
    if key.is_infinite():
        return TAG_DECIMAL, b"-Infinity" if key < 0 else b"Infinity"
    # Decimal.normalize would round to the context's precision.
    sign, digits, exponent = key.as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits)).lstrip("0")
    significant = written.rstrip("0")
    if not significant:
        return TAG_DECIMAL, b"0E0"
    exponent += len(written) - len(significant)
    return TAG_DECIMAL, f"{'-' if sign else ''}{significant}E{exponent}".encode()


def _str(key: str) -> tuple[int, bytes]:
    try:
        return TAG_STR, key.encode()
    except UnicodeEncodeError as cause:
        raise KeyTypeError(f"{key!r} cannot be a key: it is not valid Unicode text") from cause


def _date(key: dt.date) -> tuple[int, bytes]:
    return TAG_DATE, (key.toordinal() - _EPOCH_DAY).to_bytes(4, "little", signed=True)


def _time(key: dt.time) -> tuple[int, bytes]:
    if key.tzinfo is not None:
        raise KeyTypeError(
            f"{key!r} cannot be a key: a time of day with a zone is no instant; use a datetime or"
            " drop the zone in the key selector"
        )
    seconds = (key.hour * 60 + key.minute) * 60 + key.second
    return TAG_TIME, (seconds * 1_000_000 + key.microsecond).to_bytes(8, "little")


def _datetime(key: dt.datetime) -> tuple[int, bytes]:
    aware = key.utcoffset() is not None
    since = key - _EPOCH_UTC if aware else key.replace(tzinfo=None) - _EPOCH
    microseconds = (since // _MICROSECOND).to_bytes(8, "little", signed=True)
    return TAG_DATETIME_UTC if aware else TAG_DATETIME, microseconds


def _enum(key: Enum) -> tuple[int, bytes]:
    kind = type(key)
    name = key.name if isinstance(key.name, str) else ""
    if kind.__members__.get(name) is not key:
        raise KeyTypeError(f"{key!r} cannot be a key: it is not a named member of its Enum")
    if "<locals>" in kind.__qualname__:
        raise KeyTypeError(
            f"{key!r} cannot be a key: its class is defined inside a function and cannot be"
            " imported on restore; define it at the top of a module"
        )
    return TAG_ENUM, _tuple((kind.__module__, kind.__qualname__, name))[1]


def _tuple(key: tuple[Key, ...]) -> tuple[int, bytes]:
    parts: list[bytes] = []
    for item in key:
        encoded = encode_key(item)
        parts += (len(encoded).to_bytes(4, "little"), encoded)
    return TAG_TUPLE, b"".join(parts)


_ENCODERS: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    type(None): lambda _: (TAG_NONE, b""),
    bool: lambda key: (TAG_BOOL, b"\x01" if key else b"\x00"),
    int: _int,
    float: _float,
    Decimal: _decimal,
    str: _str,
    bytes: lambda key: (TAG_BYTES, key),
    dt.date: _date,
    dt.time: _time,
    dt.datetime: _datetime,
    UUID: lambda key: (TAG_UUID, key.bytes),
    tuple: _tuple,
}


def _decode_none(value: bytes) -> None:
    if value:
        raise ValueError("None has no value")


def _decode_bool(value: bytes) -> bool:
    if value not in (b"\x00", b"\x01"):
        raise ValueError("a bool is 00 or 01")
    return value == b"\x01"


def _decode_int(value: bytes) -> int:
    number: int = struct.unpack("<q", value)[0]
    return number


def _decode_float(value: bytes) -> float:
    number: float = struct.unpack("<d", value)[0]
    return number


def _decode_date(value: bytes) -> dt.date:
    return dt.date.fromordinal(struct.unpack("<i", value)[0] + _EPOCH_DAY)


def _decode_time(value: bytes) -> dt.time:
    return (_EPOCH + _decode_int(value) * _MICROSECOND).time()


def _decode_enum(value: bytes) -> Enum:
    module, qualified, member = cast(tuple[str, str, str], _decode_tuple(value))
    try:
        resolved: Any = importlib.import_module(module)
        for part in qualified.split("."):
            resolved = getattr(resolved, part)
    except (ImportError, AttributeError) as cause:
        raise RestoreError(
            f"a key in the state is {qualified}.{member}, but module {module} has no such Enum;"
            " keep the class under its old name"
        ) from cause
    if not (
        isinstance(resolved, type) and issubclass(resolved, Enum) and member in resolved.__members__
    ):
        raise RestoreError(
            f"a key in the state is {module}.{qualified}.{member}, which the program no longer has"
        )
    return resolved.__members__[member]


def _decode_tuple(value: bytes) -> tuple[Key, ...]:
    items: list[Key] = []
    at = 0
    while at < len(value):
        end = at + 4 + struct.unpack_from("<I", value, at)[0]
        if end > len(value):
            raise ValueError("a tuple item is cut short")
        items.append(decode_key(value[at + 4 : end]))
        at = end
    return tuple(items)


_DECODERS: dict[int, Callable[[bytes], Key]] = {
    TAG_NONE: _decode_none,
    TAG_BOOL: _decode_bool,
    TAG_INT: _decode_int,
    TAG_BIG_INT: lambda value: int.from_bytes(value, "little", signed=True),
    TAG_FLOAT: _decode_float,
    TAG_DECIMAL: lambda value: Decimal(value.decode()),
    TAG_STR: lambda value: value.decode(),
    TAG_BYTES: lambda value: value,
    TAG_DATE: _decode_date,
    TAG_TIME: _decode_time,
    TAG_DATETIME: lambda value: _EPOCH + _decode_int(value) * _MICROSECOND,
    TAG_DATETIME_UTC: lambda value: _EPOCH_UTC + _decode_int(value) * _MICROSECOND,
    TAG_UUID: lambda value: UUID(bytes=value),
    TAG_ENUM: _decode_enum,
    TAG_TUPLE: _decode_tuple,
}
