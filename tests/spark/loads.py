"""Records with a load of random size and its checksum, and the functions that carry and check them.

A slot imports this module, so it needs neither Spark nor pytest.
"""

import random
import time
import zlib
from pathlib import Path
from typing import Any

from weir.datastream import MapFunction, RuntimeContext

SMALL, LARGE = 40, 20_000  # Bytes at most; one load of SHARE is large.
SHARE = 20
LOOK_EVERY = 50
WAYS = 64  # More than there are subtasks of an operator.


class Loading(MapFunction):
    """Adds a load to a record, always the same one, and the load's checksum."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def map(self, value: Any) -> Any:
        source, index, _ = value
        chance = random.Random(f"{self._seed} {source} {index}")
        load = chance.randbytes(chance.randrange(SMALL if chance.randrange(SHARE) else LARGE))
        return *value, load, zlib.crc32(load)


class Checking(MapFunction):
    """Holds the load against its checksum and drops both; adds its subtask to the keyed one.

    It takes its time for each record until the file ``hurry`` is there.
    """

    def __init__(self, pause_s: float, hurry: Path) -> None:
        self._pause_s = pause_s
        self._hurry = hurry
        self._count = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        source, index, reader, load, checksum, keyed, number = value
        if zlib.crc32(load) != checksum:
            raise ValueError(f"record {index} of {source} is corrupted")
        if self._count % LOOK_EVERY == 0 and self._hurry.exists():
            self._pause_s = 0.0
        self._count += 1
        if self._pause_s:
            time.sleep(self._pause_s)
        return source, index, reader, keyed * WAYS + self._subtask, number
