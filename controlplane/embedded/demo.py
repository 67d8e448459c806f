"""The demonstration job: a year of flights, replayed for ever."""

import shutil
from pathlib import Path

from controlplane.accounts.models import User
from controlplane.base import clock
from jobs.models import FINAL_JOB_STATUSES, Job
from jobs.services import Submission, submit

MODULE = "weir.examples.flights"
NAME = "flights"
ROWS_PER_SECOND = 2_000  # A year of flights in three minutes; about 2 GB of output a day.
INTERVAL_MS = 2_000


def ensure_demo(actor: User, directory: Path) -> str:
    """The id of the demonstration job that is not over; submits one if there is none."""
    mine = Job.objects.filter(name=NAME, pipeline_target=MODULE)
    if (job := mine.exclude(status__in=FINAL_JOB_STATUSES).first()) is not None:
        return str(job.pk)
    output = directory / f"output-{clock.now():%Y%m%d-%H%M%S}"
    for old in directory.glob("output-*"):  # Output of demonstration jobs that are over.
        shutil.rmtree(old)
    operation = submit(
        actor,
        Submission(
            name=NAME,
            pipeline_kind="module",
            pipeline_target=MODULE,
            options={
                "parallelism": 2,
                "interval_ms": INTERVAL_MS,
                "parameters": {
                    "input": str(directory / "flights.parquet"),
                    "output": str(output),
                    "rows_per_second": str(ROWS_PER_SECOND),
                    "rounds": "0",
                },
            },
        ),
    )
    return str(operation.job_id)
