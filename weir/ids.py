"""Identifiers that cross every floor of Weir.

A *job* is deployed in numbered *attempts*; an attempt fences everything that an older one still
sends. A job's operators run as parallel *subtasks*; subtasks are joined by *channels*. The state
that a subtask snapshotted at one barrier is located by its *state handles*.
"""

from dataclasses import dataclass
from typing import NewType

from weir.bounds import Count, Index, Word

JobId = NewType("JobId", str)
AttemptNumber = NewType("AttemptNumber", int)  # 1 for the first deployment of a job.
CheckpointId = NewType("CheckpointId", int)  # 1 for the first of a job; never used twice.
OperatorId = NewType("OperatorId", str)  # The operator's uid, stable across versions of a program.
ChannelId = NewType("ChannelId", int)  # Number of a channel in its execution graph.


@dataclass(frozen=True, slots=True, order=True)
class SubtaskId:
    """One parallel instance of an operator; a chain is named by the subtask of its head."""

    operator: OperatorId
    index: Index

    def __str__(self) -> str:
        return f"{self.operator}-{self.index}"


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups ``first`` to ``last``, both included, as one keyed subtask owns them."""

    first: Index
    last: Index

    def __contains__(self, key_group: int) -> bool:
        return self.first <= key_group <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def intersection(self, other: "KeyGroupRange") -> "KeyGroupRange | None":
        """The groups in both ranges, or None where there are none."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first, last) if first <= last else None


@dataclass(frozen=True, slots=True)
class StateHandle:
    """The location of one piece of a snapshot, with its size and checksum.

    Exactly one of ``path`` (relative to the job's directory in the checkpoint storage) and
    ``inline`` (the bytes themselves, for small state) is set.

    Units: ``size`` in bytes; ``checksum`` is the hex XXH3-128 of the bytes.
    """

    kind: Word  # "keyed", "operator" or "channel".
    name: Word  # The state's name, unique per kind within an operator subtask.
    size: Count
    checksum: Word
    path: Word | None = None
    inline: bytes | None = None
    key_groups: KeyGroupRange | None = None  # Keyed state only.
    # Operator state: "split", "union" or "broadcast". Keyed state: "whole" or "changes" where
    # several checkpoints share it. Records under way: the partitioning of their exchange.
    mode: Word | None = None
