"""Many sums per key, for slots: rows to sum up, and the comparison of what came out.

Apart from the tests, because slots import it.
"""

import os

import numpy as np
import numpy.typing as npt
import pyarrow as pa

COLUMNS = 40
STEP = 1_000_003  # Between keys, so that each is hashed.
PADDING_KEY = 1 << 60


def name_of(column: int) -> str:
    """The name of a column of values, and of its sum."""
    return f"n{column}"


def rows_of(indices: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """A row of its own for each key, by the key's number."""
    values = {name_of(i): indices * i + 1 for i in range(COLUMNS)}
    return pa.record_batch({"key": indices * STEP, **values})


class RowsBehindPadding:
    """The same rows, behind rows that mean nothing."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, indices: npt.NDArray[np.int64]) -> pa.RecordBatch:
        is_padding = indices < self.padding
        made = rows_of(indices - self.padding)
        keys = np.where(is_padding, PADDING_KEY + indices, made.column("key").to_numpy())
        return made.set_column(0, "key", pa.array(keys))


def compared(sums: pa.RecordBatch) -> pa.RecordBatch:
    """Of the keys that had both their rows: their number and sum, and how many have wrong sums."""
    keys = sums.column("key").to_numpy()
    both = (sums.column("n").to_numpy() == 2) & (keys < PADDING_KEY)
    numbers = keys[both] // STEP
    wrong = np.zeros(len(numbers), np.bool_)
    for i in range(COLUMNS):
        wrong |= sums.column(name_of(i)).to_numpy()[both] != 2 * (numbers * i + 1)
    figures = len(numbers), int(numbers.sum()), int(wrong.sum()), os.getpid()
    names = "keys", "total", "wrong", "pid"
    rows = [figures] if len(numbers) else []
    columns = zip(names, zip(*rows, strict=True) if rows else [[]] * len(names), strict=True)
    return pa.record_batch({name: pa.array(values, pa.int64()) for name, values in columns})
