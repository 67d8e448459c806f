"""References to a job's checkpoints and savepoints: while referenced, they are not deleted.

The caller holds the lock of the job whose checkpoints it asks about. A job or attempt that comes to
need one later takes that lock as well, and checks whether the checkpoint is still kept.
"""

from collections.abc import Sequence

from checkpoints.catalog import restore_targets
from checkpoints.coordinator.shell import state_of
from checkpoints.models import Savepoint
from jobs.models import OPEN_OPERATIONS, Attempt, Job, Operation, OperationKind
from weir.protocol.pending import STOP_KINDS


def retained_ids(job: Job) -> set[int]:
    """The numbers of a job's checkpoints that are still needed.

    Those retained for a restore, those under way and their parents, the one that the running
    attempt restored, and those that this job or another one is to begin with.
    """
    state = state_of(job)
    needed = {int(c.checkpoint_id) for c in state.completed}
    for pending in state.pending:
        needed |= {int(pending.checkpoint_id), int(pending.parent_id or 0)}
    live = Attempt.objects.filter(job=job, ended_at=None)
    beginners = Job.objects.filter(restore_job=job)
    numbers = [
        *live.values_list("restored_checkpoint", flat=True),
        *beginners.values_list("restore_number", flat=True),
    ]
    needed |= {number for number in numbers if number is not None}
    if (stop := _stop_to_complete(job)) is not None:
        needed.add(stop)
    return needed


def previewed_ids(job: Job) -> set[int]:
    """The numbers of a job's checkpoints that its previews under way are about to read.

    An upgrade begins with a preview, which takes some seconds to start: a job with many checkpoints
    a second has let go of its newest one by then.
    """
    previews = Operation.objects.filter(
        job=job, kind=OperationKind.PREVIEW, status__in=OPEN_OPERATIONS
    )
    numbers = previews.values_list("parameters__checkpoint", flat=True)
    return {number for number in numbers if number is not None}


def users_of(savepoint: Savepoint, but_for: Job | None = None) -> list[str]:
    """Jobs, attempts and claims that still use a completed savepoint, one sentence each.

    Without any, it may be deleted.

    Args:
        but_for: The job whose claim does not count, since that job deletes the savepoint.
    """
    job, checkpoint = savepoint.job, savepoint.checkpoint
    assert checkpoint is not None
    needed_by = users_by_id(job, [savepoint], but_for)[checkpoint.number]
    if not needed_by and checkpoint.number in retained_ids(job):
        needed_by.append(f"{job.pk} builds a checkpoint on it")
    return needed_by


def users_by_id(
    job: Job, savepoints: Sequence[Savepoint], but_for: Job | None = None
) -> dict[int | None, list[str]]:
    """Jobs, attempts and claims that still use each savepoint of a job, by checkpoint number.

    They come from rows: a checkpoint under way that builds on a savepoint is not among them. Three
    queries for any number of savepoints.
    """
    users: dict[int | None, list[str]] = {
        row.checkpoint.number: [] for row in savepoints if row.checkpoint is not None
    }
    beginners = Job.objects.filter(restore_job=job, restore_number__in=users)
    for job_id, number in beginners.order_by("pk").values_list("pk", "restore_number"):
        users[number].append(
            f"{job_id} begins with it until it has a checkpoint of its own from there"
        )
    live = Attempt.objects.filter(job=job, ended_at=None, restored_checkpoint__in=users)
    for attempt, number in live.values_list("number", "restored_checkpoint"):
        users[number].append(f"attempt {attempt} of {job.pk} is running and has restored it")
    for savepoint in savepoints:
        claimant = savepoint.claimed_by
        if claimant is None or claimant == but_for or claimant.is_over:
            continue
        if savepoint.checkpoint is not None:
            said = f"{claimant.pk} has claimed it and is {claimant.status}"
            users[savepoint.checkpoint.number].append(said)
    if (stop := _stop_to_complete(job)) in users:
        users[stop].append(f"{job.pk} is being stopped with it")
    return users


def _stop_to_complete(job: Job) -> int | None:
    """The savepoint with which the next attempt would end a stop, should the running one fail."""
    if job.is_over:
        return None
    newest = restore_targets.newest(job)
    # One that is being deleted was not needed at that request; a launch waits for the deletion.
    if newest is None or newest.kind not in STOP_KINDS or newest.discard_due_at is not None:
        return None
    return newest.number
