"""Partitioning by key: the subtask of every row, for whole columns at a time.

The hash is that of ``weir.state.codec``, as in keyed state: rows and the state of their keys must
agree on the key group.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from weir.graph.key_groups import key_group_range
from weir.state.codec import hash_column, key_groups_of

__all__ = ["hash_column", "key_groups_of", "partition_indices"]


def partition_indices(
    key_groups: npt.NDArray[np.uint16], max_parallelism: int, parallelism: int
) -> list[npt.NDArray[np.intp]]:
    """The rows that go to each subtask, in their order in the slice.

    Shape: n key groups -> one index array per subtask; together every row exactly once.
    """
    if parallelism == 1:
        return [np.arange(len(key_groups))]
    if parallelism == 2:  # Sorting pays from three on.
        upper = key_groups >= key_group_range(max_parallelism, 2, 1).first
        return [np.flatnonzero(~upper), np.flatnonzero(upper)]
    targets = _owners(max_parallelism, parallelism)[key_groups]
    order = np.argsort(targets, kind="stable")  # A radix sort for integers this narrow.
    counts = np.bincount(targets, minlength=parallelism)
    return np.split(order, np.cumsum(counts)[:-1])


@lru_cache(maxsize=64)
def _owners(max_parallelism: int, parallelism: int) -> npt.NDArray[np.uint16]:
    groups = np.arange(max_parallelism, dtype=np.uint32)
    owners = (groups * np.uint32(parallelism) // np.uint32(max_parallelism)).astype(np.uint16)
    owners.setflags(write=False)
    return owners
