"""A driver's directory: what it is given, where it works, and its log.

``<WEIR_DRIVERS>/<job>/<number>/`` belongs to the launcher and holds

- ``job.json`` and ``spark.properties``: for the driver alone (mode 0600), with its token, its
  pipeline's parameters and its Spark settings;
- ``driver.log``: the launcher's; the driver has a descriptor of it and no more. The oldest part of
  a large one is given back to the disk (``controlplane.retention.files``): offsets stay the same;
- ``process.json``: the note of its process (``user_processes``);
- ``work/`` and ``scratch/``: the driver's own. It works in the first; the second holds temporary
  files of Spark and its JVM and is deleted with its end.

Where launcher and web run on different machines, the directory is shared. Where the driver runs as
the launcher's user, it can put anything in the place of these files, so readers open the log as
``weir.untrusted_files`` says in either case.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from django.conf import settings

from controlplane.base.threads import FileThreads
from jobs import hooks, uploads
from jobs.drivers import user_processes
from jobs.drivers.driver_account import (
    Account,
    launchers_directory,
    private_directory,
    write_private,
)
from jobs.models import Driver, Job, PipelineKind
from weir import untrusted_files

JOB_FILE_VERSION = 1
JOB_FILE_NAME = "job.json"
PROPERTIES_NAME = "spark.properties"
NOTE_NAME = "process.json"
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
    alone_max_s = settings.WEIR_DRIVER_ALONE_MAX_S
    url, gateway = settings.WEIR_URL, settings.WEIR_GATEWAY_URL
    newest = job.attempts.order_by("-number").values_list("number", flat=True).first()
    return {
        "version": JOB_FILE_VERSION,
        "gateway": gateway,
        "allow_plain_http": settings.WEIR_GATEWAY_ALLOW_PLAIN_HTTP,
        "gateway_authority": settings.WEIR_GATEWAY_CA,
        "job_id": job.pk,
        "driver": driver.number,
        "token": token,
        "pipeline": pipeline,
        "options": _options(job),
        # Left out where it says nothing: a driver of an earlier version does not know it.
        **({"alone_max_s": alone_max_s} if alone_max_s else {}),
        **({"control_plane": url} if url != gateway else {}),
        **({"progress": _progress(job, newest)} if newest else {}),
    }


def _progress(job: Job, newest_attempt: int) -> dict[str, int]:
    """The job's progress under earlier drivers: a storage that is behind it is not the job's."""
    return {"attempt": newest_attempt, "checkpoint": hooks.checkpoints.newest_kept(job)}


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


def unused_number(driver: Driver) -> int:
    """The first number, from the driver's own on, under which this machine has no directory.

    A database that lost its newest commits does not know the newest drivers. They may run still,
    until they are told that they are refused.
    """
    number = driver.number
    while os.path.lexists(directory_of(driver.job_id, number)):
        number += 1
    return number


def prepare(
    job: Job, driver: Driver, token: str, account: Account | None, *, shipped: bool
) -> Path:
    """Make the driver's directory with its job file, and return the directory.

    Raises:
        OSError: Something else lies in its place.
    """
    directory = directory_of(job.pk, driver.number)
    root().mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (root(), directory.parent, directory):
        launchers_directory(path, account)
    for path in (scratch_of(directory), work_of(directory)):
        private_directory(path, account)
    content = json.dumps(job_file(job, driver, token, shipped=shipped), indent=2)
    write_private(directory / JOB_FILE_NAME, content, account)
    return directory


def work_of(directory: Path) -> Path:
    """The driver's working directory."""
    return directory / "work"


def scratch_of(directory: Path) -> Path:
    """The directory of temporary files of Spark and its JVM, while the driver runs."""
    return directory / "scratch"


def remove_scratch(driver: Driver) -> None:
    """Begin to delete a driver's temporary files: a killed JVM leaves them. Idempotent."""
    user_processes.remove(scratch_of(directory_of(driver.job_id, driver.number)))


def open_log(driver: Driver) -> BinaryIO:
    """The driver's log, opened for reading.

    Raises:
        UntrustedFileError: Something else than a log lies in its place.
        OSError: There is no log on this machine.
    """
    return untrusted_files.open_regular(log_path(driver), below=root())


# For the web process, whose other threads may not hang.
log_readers = FileThreads(4, "log", patience_s=1.0)


def tail(driver: Driver, length: int = TAIL_BYTES_MAX) -> str:
    """The last lines of the driver's log; empty without a log on this machine."""
    try:
        part = read(driver, None, length)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"(the driver's log is {error.strerror or error})"
    return part.text if part.offset == 0 else part.text.partition("\n")[2] or part.text


def read(driver: Driver, offset: int | None = 0, length: int = READ_BYTES_MAX) -> LogPart:
    """At most ``length`` bytes of the driver's log from ``offset``; invalid UTF-8 is replaced.

    Args:
        offset: None: as far from the log's end as ``length`` reaches.

    Raises:
        UntrustedFileError: Something else than a log lies in its place.
        OSError: There is no log on this machine, or its disk is too slow.
    """
    length = min(length, READ_BYTES_MAX)
    with open_log(driver) as file:
        size = os.fstat(file.fileno()).st_size
        offset = max(0, size - length) if offset is None else min(offset, size)
        offset = max(offset, untrusted_files.first_kept(file))
        data = untrusted_files.read(file, length, offset=offset)
    return LogPart(data.decode(errors="replace"), offset, offset + len(data), size)
