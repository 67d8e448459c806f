"""State larger than the memory for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.state.backends.programs import KEYS, VALUE_BYTES
from weir.state.state_files import FILE_BYTES

pytestmark = pytest.mark.whole


def run(directory: Path, *figures: int | str) -> tuple[int, int, int]:
    """Keys that were read back, and the growth of a process of its own in snapshot and restore."""
    module = "tests.unit.state.backends.programs"
    program = [sys.executable, "-m", module, "rocksdb", str(directory), *map(str, figures)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=600)
    keys, grown_kb, restored_kb = map(int, done.stdout.split())
    return keys, grown_kb << 10, restored_kb << 10


def test_state_on_disk_takes_a_share_of_its_size_in_memory(tmp_path: Path) -> None:
    """240 MB, filled and written in a snapshot, at its peak.

    The growth hardly depends on the size of the state: 99 MB for half of it.
    """
    keys, grown, _ = run(tmp_path)
    assert keys > KEYS / 64  # Were read back.
    assert grown < 0.6 * KEYS * VALUE_BYTES


def test_large_values_take_no_more_than_small_ones(tmp_path: Path) -> None:
    """300 MB in values of 100 kB. A restore holds one file, and the share of the state that it has.

    Measured: 92 MB and 87 MB; 392 MB and 197 MB while the first pieces held a thousand values and a
    file's bytes were joined beside those of the one before.
    """
    size = 3_000 * 100_000
    keys, grown, restored = run(tmp_path, 3_000, 100_000)
    assert keys > 3_000 / 64
    assert grown < 0.4 * size
    assert restored < FILE_BYTES + size / 32 + (40 << 20)


def test_the_map_and_the_list_of_one_key_take_a_share_of_their_size_in_memory(
    tmp_path: Path,
) -> None:
    """240 MB in a map, 160,000 numbers in a list: filled, written, restored, and read through."""
    size = KEYS * VALUE_BYTES
    entries, grown, restored = run(tmp_path, "map")
    assert entries == KEYS
    assert grown < 0.6 * size
    assert restored < 0.6 * size
