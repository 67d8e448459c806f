"""The entry of the verdict: one judge for each state of a checkpoint. Pure."""

from dataclasses import replace

from checkpoints.verdict import completed, failed, pending
from checkpoints.verdict.facts import Facts
from checkpoints.verdict.result import Verdict
from weir.config import CheckpointingMode
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus

__all__ = ["Facts", "Verdict", "judge_checkpoint"]

# Of a checkpoint that was slow, late or failed; savepoints stop nothing.
AGAINST_STOPPING = (
    "The pipeline stood still meanwhile, since the mode is stop the world. Set the mode to "
    f"{CheckpointingMode.EXACTLY_ONCE}: then it works on during a checkpoint."
)
_TROUBLED = ("warn", "bad")


def judge_checkpoint(facts: Facts) -> Verdict:
    """The verdict on one checkpoint."""
    verdict = _judge(facts)
    is_checkpoint = facts.times.kind is CheckpointKind.CHECKPOINT
    if facts.times.stops_the_world and is_checkpoint and verdict.tone in _TROUBLED:
        return replace(verdict, advice=[*verdict.advice, AGAINST_STOPPING])
    return verdict


def _judge(facts: Facts) -> Verdict:
    match facts.times.status:
        case CheckpointStatus.PENDING | CheckpointStatus.FINALIZING:
            return pending.judge(facts)
        case CheckpointStatus.FAILED | CheckpointStatus.ABORTED:
            return failed.judge(facts)
        case _:
            return completed.judge(facts)
