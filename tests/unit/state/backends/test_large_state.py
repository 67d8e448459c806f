"""State larger than the memory for it."""

import subprocess
import sys
from pathlib import Path

from tests.unit.state.backends.programs import KEYS, VALUE_BYTES


def test_state_on_disk_takes_a_share_of_its_size_in_memory(tmp_path: Path) -> None:
    """240 MB, filled and written in a snapshot: the growth of a process of its own at its peak.

    The growth hardly depends on the size of the state: 99 MB for half of it.
    """
    program = [sys.executable, "-m", "tests.unit.state.backends.programs", "rocksdb", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=120)
    keys, grown_kb = map(int, done.stdout.split())
    assert keys > KEYS / 64  # Were read back.
    assert grown_kb < 0.6 * KEYS * VALUE_BYTES / 1024
