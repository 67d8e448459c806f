"""Advice to let barriers overtake the records that they waited behind. Pure.

An aligned checkpoint under back pressure takes as long as the records before its barriers; an
unaligned one stores these records instead (``weir.protocol.unaligned``). That helps where a subtask
is slow, not where a call of it does not return, and only on exchanges on which barriers may
overtake.
"""

from checkpoints.verdict.facts import Facts, Key
from controlplane.base.formatting import duration
from weir.graph.exchanges import OVERTAKABLE
from weir.protocol.elements import CheckpointKind


def against_waiting(facts: Facts, receiver: Key) -> list[str]:
    """The advice for barriers that waited behind the records of a slow subtask, if it applies."""
    times = facts.times
    if not times.is_aligned or times.kind is not CheckpointKind.CHECKPOINT:
        return []  # A savepoint is aligned in every mode.
    exchanges = {partitioning for _, partitioning in facts.upstream.get(receiver[0], ())}
    if exchanges.isdisjoint(OVERTAKABLE):
        return []
    advice = "Where it stays slow, let barriers overtake records: enable_unaligned_checkpoints()."
    if times.duration_ms is None or not facts.acks:
        return [advice]
    rest = duration(_rest_ms(facts))
    return [f"{advice} Without its wait for barriers this one would have taken about {rest}."]


def _rest_ms(facts: Facts) -> float:
    """The time of a completed checkpoint without the way of its barriers."""
    acks = facts.acks.values()
    written_ms = max(ack.sync_ms + ack.async_ms for ack in acks)
    return written_ms + max(0.0, facts.times.elapsed_ms - max(ack.total_ms for ack in acks))
