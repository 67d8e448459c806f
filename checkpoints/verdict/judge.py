"""The entry of the verdict: one judge for each state of a checkpoint. Pure."""

from checkpoints.verdict import completed, failed, pending
from checkpoints.verdict.facts import Facts
from checkpoints.verdict.result import Verdict
from weir.protocol.lifecycle import CheckpointStatus

__all__ = ["Facts", "Verdict", "judge_checkpoint"]


def judge_checkpoint(facts: Facts) -> Verdict:
    """The verdict on one checkpoint."""
    match facts.times.status:
        case CheckpointStatus.PENDING | CheckpointStatus.FINALIZING:
            return pending.judge(facts)
        case CheckpointStatus.FAILED | CheckpointStatus.ABORTED:
            return failed.judge(facts)
        case _:
            return completed.judge(facts)
