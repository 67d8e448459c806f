"""The verdict: why a checkpoint took as long as it did, failed, or is late right now. Pure.

From acknowledgements, alignments, the operator graph and what subtasks were doing (``Facts``) comes
one text (``Verdict``) for job page, checkpoint page, API and alerts. Its first sentence names the
culprit; below it stand the numbers that it rests on and what to do. What is not known is not
claimed.

- ``verdict_completed``: which part of the time was the longest, and why;
- ``verdict_walk``: from a late barrier, channel by channel, to who is really slow;
- ``verdict_causes``: skewed keys, slow storage;
- ``verdict_waiting``: whom those wait for that have not acknowledged;
- ``verdict_failed``, ``verdict_under_way``: what became of it, or what it still waits for.

Who reads the rows is ``verdicts``; what is kept of subtasks for later is ``evidence``.
"""

from checkpoints import verdict_completed, verdict_failed, verdict_under_way
from checkpoints.verdict_facts import Facts
from checkpoints.verdict_result import Verdict
from weir.protocol.lifecycle import CheckpointStatus

__all__ = ["Facts", "Verdict", "of"]


def of(facts: Facts) -> Verdict:
    """The verdict on one checkpoint."""
    match facts.times.status:
        case CheckpointStatus.PENDING | CheckpointStatus.FINALIZING:
            return verdict_under_way.judge(facts)
        case CheckpointStatus.ABORTED:
            return verdict_failed.judge(facts)
        case _:
            return verdict_completed.judge(facts)
