"""A driver's directory: its job file, and what it wrote to its terminal.

``<WEIR_DRIVERS>/<job>/<number>/`` holds ``job.json`` (mode 0600: the token is in it) and
``driver.log``. Where launcher and web run on different machines, the directory is shared.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from jobs import uploads
from jobs.models import Driver, Job, PipelineKind

JOB_FILE_VERSION = 1
JOB_FILE_NAME = "job.json"
LOG_NAME = "driver.log"
TAIL_BYTES_MAX = 8 << 10  # Goes into a cause, which people read.
READ_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log. Units: bytes from the log's beginning."""

    text: str
    offset: int
    next_offset: int
    size: int


def root() -> Path:
    """Where the files of what a launcher starts lie."""
    return Path(settings.WEIR_DRIVERS)


def directory_of(job_id: str, number: int) -> Path:
    """Where a driver's files lie."""
    return root() / job_id / str(number)


def log_path(driver: Driver) -> Path:
    """Where a driver's output goes."""
    return directory_of(driver.job_id, driver.number) / LOG_NAME


def pipeline_path(job: Job) -> Path | None:
    """The script that the job runs; None where it is a module."""
    match PipelineKind(job.pipeline_kind):
        case PipelineKind.SCRIPT:
            return Path(job.pipeline_target)
        case PipelineKind.UPLOAD:
            assert job.artifact is not None  # A constraint of the table.
            return uploads.path_of(job.artifact)
        case PipelineKind.MODULE:
            return None


def job_file(job: Job, driver: Driver, token: str, *, shipped: bool) -> dict[str, Any]:
    """What the driver is told.

    Args:
        shipped: The script is copied beside the driver by Spark, so its name alone is given.
    """
    script = pipeline_path(job)
    if script is None:
        pipeline = {"kind": "module", "target": job.pipeline_target}
    else:
        pipeline = {"kind": "script", "target": script.name if shipped else str(script)}
    return {
        "version": JOB_FILE_VERSION,
        "gateway": settings.WEIR_GATEWAY_URL,
        "allow_plain_http": settings.WEIR_GATEWAY_ALLOW_PLAIN_HTTP,
        "job_id": job.pk,
        "driver": driver.number,
        "token": token,
        "pipeline": pipeline,
        "options": _options(job),
    }


def _options(job: Job) -> dict[str, Any]:
    """What is laid over the script's settings.

    A checkpoint to begin with is named until the job has one of its own from there: a later driver
    that restored it again would redo, and put out twice, what has been committed since.
    """
    options = {**job.options, "storage": job.storage}
    if job.restore_uri:
        options |= {
            "restore": job.restore_uri,
            "rewinds_output": job.restore_rewinds,
            "claims": job.restore_claims,
            # As it is now: only then may its output that still waits be committed for it.
            "origin_is_over": job.restore_job is not None and job.restore_job.is_over,
        }
    return options


def prepare(job: Job, driver: Driver, token: str, *, shipped: bool) -> Path:
    """Make the driver's directory with its job file; gives the directory."""
    directory = directory_of(job.pk, driver.number)
    for path in (directory, scratch_of(directory)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = json.dumps(job_file(job, driver, token, shipped=shipped), indent=2)
    path = directory / JOB_FILE_NAME
    path.unlink(missing_ok=True)
    # Created with its mode: at no time can anybody else open it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    return directory


def scratch_of(directory: Path) -> Path:
    """Where Spark and its JVM put what only they need, while the driver runs."""
    return directory / "scratch"


def remove_scratch(driver: Driver) -> None:
    """Delete what a driver's Spark left; a killed one could not. Harmless to repeat."""
    scratch = scratch_of(directory_of(driver.job_id, driver.number))
    shutil.rmtree(scratch, ignore_errors=True)


def tail(driver: Driver, length: int = TAIL_BYTES_MAX) -> str:
    """The end of the driver's log; empty where there is none."""
    path = log_path(driver)
    try:
        size = path.stat().st_size
    except OSError:
        return ""
    part = read(driver, max(0, size - length), length)
    return part.text if part.offset == 0 else part.text.partition("\n")[2] or part.text


def read(driver: Driver, offset: int = 0, length: int = READ_BYTES_MAX) -> LogPart:
    """At most ``length`` bytes of the driver's log from ``offset``; undecodable ones replaced.

    Raises:
        OSError: There is no log on this machine.
    """
    length = min(length, READ_BYTES_MAX)
    with log_path(driver).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(min(offset, size))
        offset = file.tell()
        data = file.read(length)
    return LogPart(data.decode(errors="replace"), offset, offset + len(data), size)
