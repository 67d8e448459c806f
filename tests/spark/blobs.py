"""A state of many large values, for slots: written once, and compared later.

A value is a piece of random bytes, which no compression makes smaller, and is known by its key.
"""

import os
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from weir.common import Types
from weir.datastream import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from weir.graph.key_groups import key_group

BLOB_BYTES = 100_000
PADDING = "padding"
MAX_PARALLELISM = 128
HUGE_BYTES = 600_000_000


@cache
def _ordered(count: int) -> list[int]:
    """Keys in the order of their key groups, which leaves RocksDB little to compact."""
    return sorted(range(count), key=lambda key: (key_group(key, MAX_PARALLELISM), key))


@cache
def _noise() -> bytes:
    return random.Random(7).randbytes(2 * BLOB_BYTES)


def blob(key: int) -> bytes:
    """The value of a key: no two keys in a hundred thousand have the same."""
    return key.to_bytes(8, "big") + _noise()[key % BLOB_BYTES :][: BLOB_BYTES - 8]


class Written:
    """The keys to write."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, index: int) -> tuple[str, int]:
        return "write", _ordered(self.count)[index]


class Compared:
    """The keys to compare, behind records that mean nothing."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, index: int) -> tuple[str, int]:
        return (PADDING, index) if index < self.padding else ("compare", index - self.padding)


def key_of(record: tuple[str, int]) -> int:
    return record[1]


class Blobs(KeyedProcessFunction):
    """Keeps the value of each key, and says of each that is compared whether it is right."""

    def open(self, runtime_context: RuntimeContext) -> None:
        described = ValueStateDescriptor("blob", Types.PRIMITIVE_ARRAY(Types.BYTE()))
        self._blob = runtime_context.get_state(described)

    def process_element(self, value: tuple[str, int], ctx: Any) -> Iterator[tuple[int, bool, int]]:
        what, key = value
        if what == "write":
            self._blob.update(blob(key))
        elif what == "compare":
            yield key, self._blob.value() == blob(key), os.getpid()


class Huge(KeyedProcessFunction):
    """Keeps one value that is larger than the memory of its slot."""

    def open(self, runtime_context: RuntimeContext) -> None:
        described = ValueStateDescriptor("huge", Types.PRIMITIVE_ARRAY(Types.BYTE()))
        self._huge = runtime_context.get_state(described)

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        self._huge.update(b"x" * HUGE_BYTES)  # Zeros would take no memory until they are read.
        yield value
