"""Reading jobs: query sets with what their readers need, nothing is changed here."""

from django.db.models import OuterRef, Q, QuerySet, Subquery

from controlplane.errors import NotFound
from jobs import driver_files
from jobs.models import (
    LIVE_DRIVERS,
    OPEN_OPERATIONS,
    Artifact,
    Attempt,
    Driver,
    Edge,
    Job,
    JobException,
    Operation,
    Operator,
    Subtask,
)


def jobs() -> QuerySet[Job]:
    """All jobs with who submitted them, the number of their last driver and attempt."""
    drivers = Driver.objects.filter(job=OuterRef("pk")).order_by("-number")
    attempts = Attempt.objects.filter(job=OuterRef("pk")).order_by("-number")
    return Job.objects.select_related("created_by", "artifact").annotate(
        driver_number=Subquery(drivers.values("number")[:1]),
        driver_status=Subquery(drivers.values("status")[:1]),
        attempt_number=Subquery(attempts.values("number")[:1]),
    )


def job(job_id: str) -> Job:
    """One job as ``jobs`` gives them.

    Raises:
        NotFound: There is no such job.
    """
    found = None if "\0" in job_id else jobs().filter(pk=job_id).first()
    if found is None:
        raise NotFound(f"there is no job {job_id!r}")
    return found


def operators(job_id: str) -> QuerySet[Operator]:
    """The submitted graph's operators, inputs first."""
    return Operator.objects.filter(job=job_id).order_by("position")


def edges(job_id: str) -> QuerySet[Edge]:
    """The submitted graph's edges."""
    return Edge.objects.filter(job=job_id).order_by("position")


def subtasks(job_id: str) -> QuerySet[Subtask]:
    """Where each chain subtask of the newest attempt stands."""
    return Subtask.objects.filter(job=job_id).order_by("chain", "index")


def attempts(job_id: str) -> QuerySet[Attempt]:
    """The job's attempts with their driver and worker processes, newest first."""
    found = Attempt.objects.filter(job=job_id).select_related("driver")
    return found.prefetch_related("workers").order_by("-number")


def drivers(job_id: str) -> QuerySet[Driver]:
    """The job's drivers, newest first."""
    return Driver.objects.filter(job=job_id).order_by("-number")


def driver(job_id: str, number: int) -> Driver:
    """One driver of a job.

    Raises:
        NotFound: There is no such job, or it has no such driver.
    """
    of_job = Driver.objects.filter(job=job_id, number=number)
    found = None if "\0" in job_id else of_job.first()  # PostgreSQL takes no such text.
    if found is None:
        raise NotFound(f"there is no driver {number} of a job {job_id!r}")
    return found


def driver_log(job_id: str, number: int, offset: int = 0) -> driver_files.LogPart:
    """A piece of a driver's log from ``offset``; a negative one counts from the end.

    Raises:
        NotFound: There is no such driver, or its log is not (yet, or no longer) on this machine.
    """
    found = driver(job_id, number)
    try:
        if offset < 0:
            offset = max(0, driver_files.log_path(found).stat().st_size + offset)
        return driver_files.read(found, offset)
    except OSError as error:
        raise NotFound(f"driver {number} of {job_id} has no log on this machine") from error


def exceptions(job_id: str) -> QuerySet[JobException]:
    """What went wrong, newest first."""
    return JobException.objects.filter(job=job_id).order_by("-at", "-id")


def operations(job_id: str | None = None) -> QuerySet[Operation]:
    """What was asked, newest first; of one job or of all."""
    of_job = Q() if job_id is None else Q(job=job_id)
    found = Operation.objects.filter(of_job).select_related("requested_by")
    return found.order_by("-created_at", "id")


def open_operations(job_id: str) -> QuerySet[Operation]:
    """What was asked of a job and has not come to an end."""
    return operations(job_id).filter(status__in=OPEN_OPERATIONS)


def artifacts() -> QuerySet[Artifact]:
    """The uploads, newest first."""
    return Artifact.objects.select_related("uploaded_by").order_by("-uploaded_at", "digest")


def live_drivers() -> QuerySet[Driver]:
    """The drivers that run or are about to, of all jobs."""
    return Driver.objects.filter(status__in=LIVE_DRIVERS).select_related("job")
