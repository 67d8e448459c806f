"""``weir run``: a pipeline run as by ``python pipeline.py``, with options and a progress display.

The script stays in charge: it may run no job or several, and go on when one has ended. Weir only
overrides its settings with the options, shows progress and turns the outcome into an exit code.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.arguments import pipeline_parameters
from weir.cli.event_log import EventLog
from weir.cli.job_view import JobView
from weir.cli.progress import Progress
from weir.cli.uri import absolute, find_checkpoint
from weir.common.tracebacks import without_own_frames
from weir.config import CheckpointingMode
from weir.datastream.execution import ExecutionOptions, overriding
from weir.errors import ConfigError, JobFailedError, UserError, WeirError
from weir.protocol.events import JobEvent
from weir.protocol.lifecycle import JobStatus
from weir.tools.pipeline_scripts import explained, find_script, no_job_ran, run_pipeline

if TYPE_CHECKING:
    from weir.spark.submit import JobStarting

FINISHED, FAILED, NOTHING_RAN, CANCELED = 0, 1, 2, 130


class Watch:
    """Follows the jobs that a script runs, one after the other."""

    def __init__(self, log: EventLog | None) -> None:
        self._log = log
        self._progress: Progress | None = None
        self._view: JobView | None = None
        self._is_limited = False
        self.has_run = False  # A job has emitted its first event.
        self.was_canceled = False

    def on_start(self, job: "JobStarting") -> None:
        """Begin to show the job that is about to run."""
        self.close()
        options = job.options  # With a limit or a reader, a job may be ended early as planned.
        self._is_limited = options.collect_limit is not None or options.rows is not None
        self._view = JobView(job.job_id, job.graph, job.config)
        self._progress = Progress(self._view)

    def on_event(self, event: JobEvent) -> None:
        """Show and log an event of the current job."""
        self.has_run = True
        if self._progress is not None:
            self._progress.on_event(event)
        if self._log is not None:
            self._log.on_event(event)

    def close(self) -> None:
        """Show the end of the current job."""
        if self._progress is not None and self._view is not None:
            self._progress.close()
            status = self._view.history.status
            self.was_canceled |= status is JobStatus.CANCELED and not self._is_limited
        self._progress = self._view = None


def run(arguments: Namespace) -> int:
    """Run the pipeline and return the exit code.

    Raises:
        UserError: The arguments are wrong; nothing ran.
    """
    options = _options(arguments)
    script = find_script(arguments.pipeline)
    try:
        from weir.spark import submit
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise UserError(
            "running a pipeline needs pyspark, which this Python does not have: pip install pyspark"
        ) from error
    log = None if arguments.events is None else EventLog(arguments.events)
    watch = Watch(log)
    submit.announce(watch.on_start)
    submit.listen(watch.on_event)
    try:
        with overriding(options):
            code = _run_script(arguments.pipeline, script, arguments.script_arguments, watch)
    finally:
        watch.close()
        submit.unlisten(watch.on_event)
        submit.unannounce(watch.on_start)
        if log is not None:
            log.close()
    return CANCELED if watch.was_canceled else code


def _run_script(name: str, script: Path | None, arguments: Sequence[str], watch: Watch) -> int:
    try:
        run_pipeline(name, script, arguments)
    except KeyboardInterrupt:
        return CANCELED
    except JobFailedError as error:
        watch.close()
        print(f"weir: {without_own_frames(str(error))}", file=sys.stderr)
        return FAILED
    except Exception as error:
        watch.close()
        return _explain(error, has_run=watch.has_run)
    watch.close()
    if watch.has_run or watch.was_canceled:
        return FINISHED
    print(f"weir: {no_job_ran(name)}", file=sys.stderr)
    return NOTHING_RAN


def _explain(error: Exception, *, has_run: bool) -> int:
    """Print the script's error with its own frames, and return the exit code."""
    print(explained(error), end="", file=sys.stderr)
    if has_run:
        print("weir: the pipeline's script raised this after its job had run", file=sys.stderr)
        return FAILED
    if isinstance(error, WeirError):
        return NOTHING_RAN if isinstance(error, UserError) else FAILED
    print("weir: the pipeline raised this before its job started; nothing ran", file=sys.stderr)
    return NOTHING_RAN


def _options(arguments: Namespace) -> ExecutionOptions:
    mode = arguments.mode
    _check_going_back(arguments)
    return ExecutionOptions(
        master=arguments.master,
        parallelism=arguments.parallelism,
        interval_ms=arguments.interval,
        mode=None if mode is None else CheckpointingMode(mode.replace("-", "_")),
        # Slots run elsewhere: a path must not depend on where this process was started.
        storage=None if arguments.storage is None else absolute(arguments.storage),
        restore=_restore(arguments.restore),
        as_new_job=arguments.as_new_job,
        rewinds_output=not arguments.keep_output,
        claims=arguments.claim,
        parameters=pipeline_parameters(arguments),
        allow_non_restored_state=arguments.allow_non_restored_state or None,
        allow_pickled_state=arguments.allow_pickled_state or None,
    )


def _check_going_back(arguments: Namespace) -> None:
    """Check the options that need ``--restore``, or exclude each other."""
    restore = arguments.restore
    if arguments.keep_output and restore is None:
        raise ConfigError("--keep-output needs --restore: without a restore no output is withdrawn")
    for option, is_given in (("--as-new-job", arguments.as_new_job), ("--claim", arguments.claim)):
        if is_given and restore in (None, "latest"):
            raise ConfigError(f"{option} needs --restore with the URI of a checkpoint or savepoint")
    if arguments.as_new_job and arguments.claim:
        raise ConfigError(
            "--claim with --as-new-job would take the savepoint away from its former job, which "
            "goes on beside the new one; leave one of them out"
        )


def _restore(given: str | None) -> str | None:
    if given is None or given == "latest":
        return given
    # Before Spark starts, which takes a while: refuse a checkpoint that cannot be restored.
    find_checkpoint(given)
    return absolute(given).removesuffix("/manifest")
