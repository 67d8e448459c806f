"""Rows of jobs and drivers for tests that need no driver process."""

from typing import Any

from controlplane.accounts.models import Role, User, digest_of
from controlplane.base import clock
from jobs.models import Driver, DriverStatus, Job
from weir.protocol.lifecycle import JobStatus


def make_job(job_id: str = "orders-1", **fields: Any) -> Job:
    """A running job."""
    now = clock.now()
    values: dict[str, Any] = {
        "name": "orders",
        "pipeline_kind": "module",
        "pipeline_target": "weir.examples.flights",
        "spark_master": "local[2]",
        "storage": "memory",
        "status": JobStatus.RUNNING.value,
        "created_at": now,
        "status_changed_at": now,
        "started_at": now,
    }
    return Job.objects.create(id=job_id, **values | fields)


def make_driver(job: Job, token: str, number: int = 1, **fields: Any) -> Driver:
    """A driver that runs and is known by ``token``."""
    values: dict[str, Any] = {"status": DriverStatus.RUNNING, "created_at": clock.now()}
    return Driver.objects.create(
        job=job, number=number, token_digest=digest_of(token), **values | fields
    )


def make_user(name: str = "vera", role: Role = Role.VIEWER, **fields: Any) -> User:
    """A user who can log in."""
    return User.objects.create_user(name, password="a long password", role=role, **fields)
