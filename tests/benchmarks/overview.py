"""The overview of very many running jobs: its page, and one update of it.

Each job has three chains of four subtasks, and the checkpoints of a few minutes.
"""

from statistics import median, quantiles

from tests.benchmarks import pages
from tests.benchmarks.dashboard import Viewer
from tests.benchmarks.report import Row, limit_row
from tests.benchmarks.web_stack import web_stack

JOBS = 500
SUBTASKS = 4  # Of each of three chains.
CHECKPOINTS = 200
P95_MAX_MS = 200.0


def overview(quick: bool) -> list[Row]:
    """The time of the overview, and of one update of it, over HTTP."""
    with web_stack() as stack:
        from django.urls import reverse

        viewer = Viewer(stack)
        jobs = JOBS // 10 if quick else JOBS
        fill(jobs)
        addresses = [
            pages.Address("the page", reverse("job-list")),
            pages.Address("an update of it", reverse("job-list-data")),
        ]
        reader = viewer.reader()
        try:
            took = pages.timed(reader, addresses, seconds=5.0 if quick else 30.0)
        finally:
            reader.close()
    p95 = {name: quantiles(times, n=20, method="inclusive")[18] for name, times in took.items()}
    return [
        limit_row(
            f"the overview of {jobs} running jobs: {address.name}, p95",
            "ms",
            p95[address.name],
            at_most=P95_MAX_MS,
            baseline=p95[pages.NOTHING],
            against="GET /healthz",
            note=f"median {median(took[address.name]):.0f} ms, {len(took[address.name])} times",
        )
        for address in addresses
    ]


def fill(jobs: int) -> None:
    """Write the jobs."""
    from django.db import connection

    from controlplane.base import clock
    from tests.benchmarks.dashboard_data import checkpoint_rows, job_rows

    now = clock.now()
    for number in range(jobs):
        job = job_rows(f"job-{number}", SUBTASKS, now)
        checkpoint_rows(job.pk, CHECKPOINTS, SUBTASKS, now, detailed=0)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
