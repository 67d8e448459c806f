"""The job file, by which the control plane's launcher tells a driver its job and its pipeline.

It is JSON, written with mode 0600 because the driver's token is in it::

    {
        "version": 1,
        "gateway": "https://weir.example",
        "allow_plain_http": false,
        "gateway_authority": "",
        "job_id": "…",
        "driver": 3,
        "token": "…",
        "pipeline": {"kind": "script", "target": "/path/pipeline.py"},
        "options": {"parallelism": 4, "storage": "/checkpoints", "parameters": {"rate": "100"}},
    }

An option that is left out is the script's to set. Beside ``gateway``, ``"control_plane":
"https://weir.example"`` is the URL as people reach it, where that is another. ``"alone_max_s":
3600`` ends a driver to which no control plane has answered for so long, and ``"progress":
{"attempt": 2, "checkpoint": 41}`` names the newest of earlier drivers: the storage has to hold that
checkpoint.
"""

import json
import os
import stat
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from weir.config import CheckpointingMode, RestartStrategyKind
from weir.datastream.execution import ExecutionOptions
from weir.errors import ConfigError, ProtocolError
from weir.jobmaster.restorer import NO_PROGRESS, JobProgress
from weir.protocol.wire import from_wire

VERSION = 1
BYTES_MAX = 1 << 20


class PipelineKind(StrEnum):
    """The form of a pipeline."""

    SCRIPT = "script"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline to run: a script's path, or a module's dotted name."""

    kind: PipelineKind
    target: str


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """Settings of restarts that override the script's, as ``RestartConfig`` names them."""

    kind: RestartStrategyKind | None = None
    attempts_max: int | None = None
    delay_ms: int | None = None
    failures_max: int | None = None
    failure_interval_ms: int | None = None
    initial_backoff_ms: int | None = None
    max_backoff_ms: int | None = None
    backoff_multiplier: float | None = None
    reset_after_ms: int | None = None
    jitter: float | None = None

    def given(self) -> dict[str, Any]:
        """The settings that are not left to the script."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the control plane that override the script's; None leaves one to the script."""

    parallelism: int | None = None
    interval_ms: int | None = None
    mode: CheckpointingMode | None = None
    timeout_ms: int | None = None
    min_pause_ms: int | None = None
    retained_max: int | None = None
    restart: RestartOptions = RestartOptions()
    storage: str | None = None
    restore: str | None = None
    rewinds_output: bool = True
    claims: bool = False
    origin_is_over: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    allow_non_restored_state: bool | None = None
    allow_pickled_state: bool | None = None
    secrets: tuple[str, ...] = ()  # Names; the values come through a pipe.

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            if type(value) is not str:
                raise ConfigError(f"parameter {name} is {value!r}; parameters are text")

    def to_execution(self) -> ExecutionOptions:
        """The options as ``env.execute()`` takes them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["secrets"]
        return ExecutionOptions(**{**values, "restart": self.restart.given()})


@dataclass(frozen=True, slots=True)
class JobFile:
    """The contents of a job file."""

    version: int
    gateway: str  # The control plane's base URL.
    job_id: str
    driver: int  # Its number among the job's drivers.
    token: str = field(repr=False)
    pipeline: Pipeline
    options: Options = Options()
    allow_plain_http: bool = False
    gateway_authority: str = ""  # PEM certificates; empty: those that the system trusts.
    alone_max_s: float | None = None  # Without a control plane it ends then; None: never.
    progress: JobProgress = NO_PROGRESS
    control_plane: str = ""  # Its URL as people reach it; empty: the gateway's.


def read_job_file(path: Path) -> JobFile:
    """Read and check a job file.

    Raises:
        ConfigError: It cannot be read, others can read it, or its contents are invalid.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the job file {path} cannot be read: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the job file {path} is no regular file")
    if status.st_mode & 0o077:
        raise ConfigError(
            f"the job file {path} holds a token and has mode {stat.S_IMODE(status.st_mode):04o}, "
            "so that others may read or change it; it must have 0600"
        )
    if len(data) > BYTES_MAX:
        raise ConfigError(f"the job file {path} is larger than {BYTES_MAX} bytes")
    return parse_job_file(data, str(path))


def parse_job_file(data: bytes, name: str) -> JobFile:
    """Parse and check the contents of a job file.

    Raises:
        ConfigError: It is no JSON, has another version, lacks a field or has an unknown one.
    """
    try:
        told = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"the job file {name} is no JSON: {error}") from error
    version = told.get("version") if type(told) is dict else None
    if version != VERSION:
        raise ConfigError(
            f"the job file {name} has version {version!r}, and this Weir reads {VERSION}: install "
            "the control plane's version of Weir where its drivers start"
        )
    try:
        return from_wire(JobFile, told)
    except ProtocolError as error:
        raise ConfigError(f"the job file {name}: {error}") from error
