"""Rows of jobs. The lock on a job's row is the one lock of everything that belongs to the job.

::

    Artifact <── Job ──< Driver ──< Attempt ──< Worker
                  ├──< Operator, Edge         the submitted graph, once its pipeline built it
                  ├──< Subtask                the newest attempt's
                  ├──< ChainSample            a day of what the subtasks of each chain reported
                  ├──< JobException
                  ├──< JobEvent               facts, in their order
                  ├──< Operation
                  ├──< SetAsideStep           due steps that failed
                  └──< OutboxCommand          to the newest driver
    ControlPlanePulse                         one row

Only the services (``jobs.services``, ``jobs.operations``, ``jobs.drivers``, ``jobs.events``) write;
``jobs.job_events`` alone writes job events, and ``checkpoints.chain_samples`` chain samples.
"""

from jobs.models.attempt import Attempt, ChainSample, Edge, Operator, Subtask, Worker
from jobs.models.choices import (
    FINAL_JOB_STATUSES,
    LIVE_DRIVERS,
    OPEN_OPERATIONS,
    RECOVERY_TARGET_S_MAX,
    RECOVERY_TARGET_S_MIN,
    AttemptEnd,
    DesiredState,
    DriverStatus,
    JobEventKind,
    OperationKind,
    OperationStatus,
    PipelineKind,
)
from jobs.models.driver import ControlPlanePulse, Driver, OutboxCommand
from jobs.models.job import Artifact, Job
from jobs.models.operation import Operation, SetAsideStep
from jobs.models.record import JobEvent, JobException

__all__ = [
    "Artifact",
    "Attempt",
    "AttemptEnd",
    "ChainSample",
    "ControlPlanePulse",
    "DesiredState",
    "Driver",
    "DriverStatus",
    "Edge",
    "FINAL_JOB_STATUSES",
    "Job",
    "JobEvent",
    "JobEventKind",
    "JobException",
    "LIVE_DRIVERS",
    "OPEN_OPERATIONS",
    "Operation",
    "OperationKind",
    "OperationStatus",
    "Operator",
    "OutboxCommand",
    "PipelineKind",
    "RECOVERY_TARGET_S_MAX",
    "RECOVERY_TARGET_S_MIN",
    "SetAsideStep",
    "Subtask",
    "Worker",
]
