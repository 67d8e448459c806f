"""The driver that the control plane starts, by ``spark-submit … driver.py JOBFILE``.

It runs the pipeline's script as ``weir run`` does and posts the job's events (``managed``). It
never outlives the Spark application that it drives: a driver without its JVM could neither run the
job nor be found, and its successor would run beside it.

Exit codes: 0 the job finished or was cancelled; 1 it failed; 2 the pipeline ran no job, or the job
file is wrong; 75 the driver had to leave the job; 76 it was fenced; 77 the control plane refused
its requests; 70 its JVM ended.
"""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from weir.common.tracebacks import without_own_frames
from weir.datastream.execution import overriding
from weir.errors import ConfigError, DriverEndedError, JobFailedError, UserError, WeirError
from weir.ids import JobId
from weir.managed.driver_log import log_driver
from weir.managed.gateway_line import GatewayAddress
from weir.managed.job_file import JobFile, Pipeline, PipelineKind, read_job_file
from weir.managed.managed_driver import EXIT_NOTHING_RAN, ManagedDriver, Stopped
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    JobChanged,
    JobEvent,
    Notice,
    Recovered,
    SlotChanged,
    WorkerStarted,
)
from weir.secrets import job_secrets
from weir.secrets.masked_output import masked_output
from weir.spark import submit
from weir.tools.pipeline_scripts import explained, find_script, no_job_ran, run_pipeline
from weir.worker.lifeline import when_parent_ends

logger = logging.getLogger("weir.driver")

EXIT_JVM_GONE = 70
# Set by spark-submit for the Python process that it starts.
STARTED_BY_JVM = "PYSPARK_GATEWAY_PORT"


def main(arguments: Sequence[str]) -> int:
    """Run the job of a job file; returns the exit code."""
    if len(arguments) != 1:
        print("usage: spark-submit … driver.py JOBFILE", file=sys.stderr)
        return EXIT_NOTHING_RAN
    try:
        file = read_job_file(Path(arguments[0]))
        address = GatewayAddress(
            file.gateway,
            JobId(file.job_id),
            file.token,
            file.allow_plain_http,
            file.gateway_authority,
            file.control_plane,
        )
        job_secrets.receive(file.options.secrets)
    except ConfigError as error:
        print(f"weir: {error}", file=sys.stderr)
        return EXIT_NOTHING_RAN
    with masked_output(job_secrets.masker()):
        return _drive(file, address)


def _drive(file: JobFile, address: GatewayAddress) -> int:
    log_driver(file.job_id, file.driver)
    if STARTED_BY_JVM in os.environ:
        when_parent_ends(_end_without_jvm)
    managed = ManagedDriver(address.job_id, address, file.alone_max_s, file.progress)
    try:
        managed.start()
        _run(file, managed)
    except Stopped as stopped:
        managed.leave(str(stopped))
    return managed.close()


def _run(file: JobFile, managed: ManagedDriver) -> None:
    name = file.pipeline.target
    problem, may_help_to_retry = no_job_ran(name), False
    submit.listen(_log)
    try:
        with overriding(file.options.to_execution()), submit.under(managed):
            run_pipeline(name, _script(file.pipeline))
    except SystemExit as error:
        if error.code not in (None, 0):
            problem = f"sys.exit({error.code!r}): {problem}"
    except (JobFailedError, DriverEndedError) as error:  # Their events were posted already.
        logger.error("%s", without_own_frames(str(error)))
    except (Exception, KeyboardInterrupt) as error:
        problem = explained(error).rstrip()
        may_help_to_retry = isinstance(error, WeirError) and error.retryable
        when = "after its job had run" if managed.is_planned else "before its job started"
        logger.error("the pipeline's script raised this %s:\n%s", when, problem)
    if managed.is_planned or may_help_to_retry:
        managed.leave(problem)  # Unless the job has ended, which is the usual case.
    else:
        managed.pipeline_failed(problem)


def _script(pipeline: Pipeline) -> Path | None:
    if pipeline.kind is PipelineKind.MODULE:
        return None
    script = find_script(pipeline.target)
    if script is None:
        raise UserError(f"there is no file {pipeline.target}")
    return script


def _log(event: JobEvent) -> None:
    match event:
        case JobChanged(_, status, cause):
            logger.info("the job is %s%s", status, f": {cause}" if cause else "")
        case AttemptStarted(_, attempt, restored):
            since = "the beginning" if restored is None else f"checkpoint {restored}"
            logger.info("attempt %d starts from %s", attempt, since)
        case SlotChanged(_, slot, host, pid, registered):
            change = "registered" if registered else "was lost"
            logger.info("slot %d on %s (pid %d) %s", slot, host, pid, change)
        case WorkerStarted(_, attempt, slot, pid):
            logger.info("attempt %d: worker process %d runs in slot %d", attempt, pid, slot)
        case CheckpointSettled(_, checkpoint_id, duration_ms, None):
            logger.info("checkpoint %d completed in %d ms", checkpoint_id, duration_ms)
        case CheckpointSettled(_, checkpoint_id, _, failure, cause):
            logger.warning("checkpoint %d failed: %s %s", checkpoint_id, failure, cause)
        case Recovered(_, attempt, cause):
            logger.info("attempt %d runs; the one before ended: %s", attempt, cause)
        case Notice(_, text):
            logger.warning("%s", text)
        case _:
            pass


def _end_without_jvm() -> NoReturn:
    with suppress(OSError):  # Standard error usually goes through the JVM.
        os.write(2, b"weir: Spark's JVM has ended, and this driver ends with it\n")
    os._exit(EXIT_JVM_GONE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
