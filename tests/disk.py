"""A directory on a disk, for tests of files that are larger than the memory they may take.

``make test`` keeps temporary files in memory, where the pages of a file cannot be dropped.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DIRECTORY = "WEIR_TEST_DISK"  # Of a whole run; without one the usual place serves.


@contextmanager
def on_disk() -> Iterator[Path]:
    """A directory of its own, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="weir-disk-", dir=os.environ.get(DIRECTORY)) as name:
        yield Path(name)
