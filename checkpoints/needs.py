"""What may not be deleted, and who needs it.

The caller holds the lock of the job whose checkpoints are asked about. Whoever comes to need one of
them later takes that lock as well, and looks whether it is still kept.
"""

from checkpoints import restores
from checkpoints.coordination import state_of
from checkpoints.models import Savepoint
from jobs.models import Attempt, Job
from weir.protocol.pending import STOP_KINDS


def numbers(job: Job) -> set[int]:
    """The checkpoints of a job that something needs.

    Those that are kept for a restore, those under way and what they build on, what the attempt that
    runs went on from, and what this job or another one is to begin with.
    """
    state = state_of(job)
    needed = {int(c.checkpoint_id) for c in state.completed}
    for pending in state.pending:
        needed |= {int(pending.checkpoint_id), int(pending.parent_id or 0)}
    live = Attempt.objects.filter(job=job, ended_at=None)
    needed |= set(live.values_list("restored_checkpoint", flat=True))
    needed |= set(Job.objects.filter(restore_job=job).values_list("restore_number", flat=True))
    if (stop := _stop_to_complete(job)) is not None:
        needed.add(stop)
    return needed - {None}


def of_savepoint(savepoint: Savepoint, but_for: Job | None = None) -> list[str]:
    """Who needs a savepoint that completed, one sentence each; none: it may be deleted.

    Args:
        but_for: The job whose claim does not count, for it is that job's turn to delete it.
    """
    job, checkpoint = savepoint.job, savepoint.checkpoint
    assert checkpoint is not None
    number = checkpoint.number
    beginners = Job.objects.filter(restore_job=job, restore_number=number)
    needed_by = [
        f"{job_id} begins with it until it has a checkpoint of its own from there"
        for job_id in beginners.order_by("pk").values_list("pk", flat=True)
    ]
    live = Attempt.objects.filter(job=job, ended_at=None, restored_checkpoint=number)
    needed_by += [
        f"attempt {attempt} of {job.pk}, which runs, went on from it"
        for attempt in live.values_list("number", flat=True)
    ]
    claimant = savepoint.claimed_by
    if claimant is not None and claimant != but_for and not claimant.is_over:
        needed_by.append(f"{claimant.pk} has claimed it and is {claimant.status}")
    if _stop_to_complete(job) == number:
        needed_by.append(f"{job.pk} is being stopped with it")
    if not needed_by and number in numbers(job):
        needed_by.append(f"{job.pk} builds a checkpoint on it")
    return needed_by


def _stop_to_complete(job: Job) -> int | None:
    """The savepoint that the next attempt would end a stop with, should the one that runs fail."""
    if job.is_over:
        return None
    newest = restores.newest(job)
    # What is being deleted was not needed when that was asked for; a launch waits for its end.
    if newest is None or newest.kind not in STOP_KINDS or newest.discard_due_at is not None:
        return None
    return newest.number
