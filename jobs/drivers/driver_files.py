"""A driver's directory: its job file and its log.

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
TAIL_BYTES_MAX = 8 << 10  # Becomes part of a cause, which people read.
READ_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log. Units: bytes from the log's beginning."""

    text: str
    offset: int
    next_offset: int
    size: int


def root() -> Path:
    """The directory of the files of all processes that a launcher starts."""
    return Path(settings.WEIR_DRIVERS)


def directory_of(job_id: str, number: int) -> Path:
    """The directory of a driver's files."""
    return root() / job_id / str(number)


def log_path(driver: Driver) -> Path:
    """The file of a driver's standard output and error."""
    return directory_of(driver.job_id, driver.number) / LOG_NAME


def pipeline_path(job: Job) -> Path | None:
    """The script that the job runs; None for a module."""
    match PipelineKind(job.pipeline_kind):
        case PipelineKind.SCRIPT:
            return Path(job.pipeline_target)
        case PipelineKind.UPLOAD:
            assert job.artifact is not None  # A constraint of the table.
            return uploads.path_of(job.artifact)
        case PipelineKind.MODULE:
            return None


def job_file(job: Job, driver: Driver, token: str, *, shipped: bool) -> dict[str, Any]:
    """The content of the driver's job file.

    Args:
        shipped: Spark copies the script beside the driver, so the file holds its name alone.
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
    """The submission's overrides of the script's settings.

    They name a checkpoint to start from until the job has completed one of its own after it: a
    later driver that restored it again would repeat, and put out twice, all output committed since.
    """
    options = {**job.options, "storage": job.storage}
    if job.restore_uri:
        options |= {
            "restore": job.restore_uri,
            "rewinds_output": job.restore_rewinds,
            "claims": job.restore_claims,
            # Read now: the pending output of the origin may be committed only once it is over.
            "origin_is_over": job.restore_job is not None and job.restore_job.is_over,
        }
    return options


def prepare(job: Job, driver: Driver, token: str, *, shipped: bool) -> Path:
    """Make the driver's directory with its job file, and return the directory."""
    directory = directory_of(job.pk, driver.number)
    for path in (directory, scratch_of(directory)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = json.dumps(job_file(job, driver, token, shipped=shipped), indent=2)
    path = directory / JOB_FILE_NAME
    path.unlink(missing_ok=True)
    # Created with its mode: at no time can another user open it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    return directory


def scratch_of(directory: Path) -> Path:
    """The directory of temporary files of Spark and its JVM, while the driver runs."""
    return directory / "scratch"


def remove_scratch(driver: Driver) -> None:
    """Delete a driver's temporary files: a killed JVM leaves them. Idempotent."""
    scratch = scratch_of(directory_of(driver.job_id, driver.number))
    shutil.rmtree(scratch, ignore_errors=True)


def tail(driver: Driver, length: int = TAIL_BYTES_MAX) -> str:
    """The last lines of the driver's log; empty without a log on this machine."""
    path = log_path(driver)
    try:
        size = path.stat().st_size
    except OSError:
        return ""
    part = read(driver, max(0, size - length), length)
    return part.text if part.offset == 0 else part.text.partition("\n")[2] or part.text


def read(driver: Driver, offset: int = 0, length: int = READ_BYTES_MAX) -> LogPart:
    """At most ``length`` bytes of the driver's log from ``offset``; invalid UTF-8 is replaced.

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
