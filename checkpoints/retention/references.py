"""What may not be deleted, and who needs it.

The caller holds the lock of the job whose checkpoints are asked about. Whoever comes to need one of
them later takes that lock as well, and looks whether it is still kept.
"""

from collections.abc import Sequence

from checkpoints.catalog import restore_targets
from checkpoints.coordinator.shell import state_of
from checkpoints.models import Savepoint
from jobs.models import Attempt, Job
from weir.protocol.pending import STOP_KINDS


def retained_ids(job: Job) -> set[int]:
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


def users_of(savepoint: Savepoint, but_for: Job | None = None) -> list[str]:
    """Who needs a savepoint that completed, one sentence each; none: it may be deleted.

    Args:
        but_for: The job whose claim does not count, for it is that job's turn to delete it.
    """
    job, checkpoint = savepoint.job, savepoint.checkpoint
    assert checkpoint is not None
    needed_by = users_by_id(job, [savepoint], but_for)[checkpoint.number]
    if not needed_by and checkpoint.number in retained_ids(job):
        needed_by.append(f"{job.pk} builds a checkpoint on it")
    return needed_by


def users_by_id(
    job: Job, savepoints: Sequence[Savepoint], but_for: Job | None = None
) -> dict[int, list[str]]:
    """Who needs a job's savepoints, by their checkpoints' numbers, as far as rows tell.

    What the coordinator builds a checkpoint on just now is not among it. Three queries, whatever
    the number of savepoints.
    """
    found: dict[int, list[str]] = {
        row.checkpoint.number: [] for row in savepoints if row.checkpoint is not None
    }
    beginners = Job.objects.filter(restore_job=job, restore_number__in=found)
    for job_id, number in beginners.order_by("pk").values_list("pk", "restore_number"):
        found[number].append(
            f"{job_id} begins with it until it has a checkpoint of its own from there"
        )
    live = Attempt.objects.filter(job=job, ended_at=None, restored_checkpoint__in=found)
    for attempt, number in live.values_list("number", "restored_checkpoint"):
        found[number].append(f"attempt {attempt} of {job.pk}, which runs, went on from it")
    for savepoint in savepoints:
        claimant = savepoint.claimed_by
        is_claimed = claimant is not None and claimant != but_for and not claimant.is_over
        if is_claimed and savepoint.checkpoint is not None:
            said = f"{claimant.pk} has claimed it and is {claimant.status}"
            found[savepoint.checkpoint.number].append(said)
    if (stop := _stop_to_complete(job)) in found:
        found[stop].append(f"{job.pk} is being stopped with it")
    return found


def _stop_to_complete(job: Job) -> int | None:
    """The savepoint that the next attempt would end a stop with, should the one that runs fail."""
    if job.is_over:
        return None
    newest = restore_targets.newest(job)
    # What is being deleted was not needed when that was asked for; a launch waits for its end.
    if newest is None or newest.kind not in STOP_KINDS or newest.discard_due_at is not None:
        return None
    return newest.number
