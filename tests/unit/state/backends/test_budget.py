"""The shares of RocksDB in the memory of a worker process."""

import pickle
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.common.typeinfo import Types
from weir.config import SLOT_MEMORY_BYTES_MIN
from weir.ids import KeyGroupRange
from weir.state.backends import budget as budgets
from weir.state.backends import rocksdb
from weir.state.backends.base import StateTable
from weir.state.backends.budget import MemoryBudget
from weir.state.backends.rocksdb import RocksTables
from weir.state.backends.rocksdb_options import block_cache, open_files_max
from weir.state.codec import canonical

ROOM = 320_000_000
LIMIT = SLOT_MEMORY_BYTES_MIN + ROOM
GROUPS = KeyGroupRange(0, 0)


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(LIMIT)


@pytest.fixture
def tables(tmp_path: Path, budget: MemoryBudget) -> Iterator[RocksTables]:
    opened = RocksTables(GROUPS, str(tmp_path), budget=budget)
    yield opened
    opened.close()


def filled(tables: RocksTables, name: str, value: bytes, count: int) -> StateTable:
    table = tables.table(name, "value", Types.PICKLED_BYTE_ARRAY())
    for key in range(count):
        table.put(0, key, value)
    return table


def fresh_and_sealed(table: StateTable) -> tuple[int, int]:
    assert isinstance(table, rocksdb.RocksTable)
    return len(table.fresh[0]), len(table.increments)


def test_caches_are_shares_of_the_limit_and_never_nothing() -> None:
    assert (MemoryBudget(LIMIT).cache_bytes, MemoryBudget(LIMIT).fresh_bytes) == (
        ROOM // 4,
        budgets.FRESH_BYTES,  # Of 20 MB.
    )
    least = MemoryBudget(SLOT_MEMORY_BYTES_MIN)
    assert (least.cache_bytes, least.fresh_bytes) == (8 << 20, 1 << 20)
    unlimited = MemoryBudget()
    assert (unlimited.cache_bytes, unlimited.fresh_bytes) == (32 << 20, 16 << 20)


def test_operator_subtasks_divide_the_fresh_values_and_share_one_cache(
    tmp_path: Path, budget: MemoryBudget
) -> None:
    several = [RocksTables(GROUPS, str(tmp_path), budget=budget) for _ in range(4)]
    assert budget.fresh_bytes == ROOM // 16 // 4
    assert block_cache(budget) is block_cache(budget)
    assert block_cache(budget) is not block_cache(MemoryBudget(LIMIT))
    for one in several[1:]:
        one.close()
    assert budget.fresh_bytes == budgets.FRESH_BYTES
    several[0].close()


def test_the_first_values_are_measured_before_many_are_held(tables: RocksTables) -> None:
    """A megabyte each: as many as fit into the share of fresh values, not a thousand."""
    table = filled(tables, "blobs", b"x" * 1_000_000, 16)
    tables.tidy()
    assert fresh_and_sealed(table) == (16, 0)
    table.put(0, 16, b"x" * 1_000_000)
    tables.tidy()
    assert fresh_and_sealed(table)[0] == 0


def test_small_values_of_one_state_do_not_hide_the_large_ones_of_another(
    tables: RocksTables,
) -> None:
    blobs, counts = filled(tables, "blobs", b"x" * 1_000_000, 2), filled(tables, "n", b"1", 2)
    tables.tidy()
    tables.give_back()  # The last file written is of the small ones.
    assert fresh_and_sealed(blobs) == fresh_and_sealed(counts) == (0, 0)
    for key in range(17):
        blobs.put(0, key, b"y" * 1_000_000)
        tables.tidy()
    assert fresh_and_sealed(blobs)[0] < 17
    assert blobs.tables[0].get(0) == b"y" * 1_000_000


def test_a_piece_of_large_values_is_within_the_share(
    tables: RocksTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = []
    write = rocksdb._SortedFile.write
    monkeypatch.setattr(
        rocksdb._SortedFile,
        "write",
        lambda file, keys, values: pieces.append(len(keys)) or write(file, keys, values),
    )
    filled(tables, "blobs", b"x" * 4_000_000, 10)
    tables.tidy()
    tables.give_back()
    assert pieces == [4, 4, 2]  # Of 16 MiB.


def test_giving_back_writes_everything(tables: RocksTables) -> None:
    table = filled(tables, "small", b"v", 5)
    assert isinstance(table, rocksdb.RocksTable)
    assert table.held().entries == 5
    tables.give_back()
    assert table.held().entries == 0
    assert table.tables[0].get(3) == b"v"
    assert table.family.get(tables.prefix(0) + canonical(3)) == pickle.dumps(b"v", 5)


@pytest.mark.parametrize(
    ("limit", "files"),
    [(64, 256), (1_024, 256), (8_192, 512), (1 << 20, 1_024), (resource.RLIM_INFINITY, 1_024)],
)
def test_databases_share_the_files_that_a_process_may_have_open(limit: int, files: int) -> None:
    assert open_files_max(limit) == files
