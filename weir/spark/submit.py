"""The submission of a graph to Spark, called by ``env.execute()``.

Where the script runs inside a Spark application already (``spark-submit``, a notebook), its session
is used; otherwise a local one is started with one core per slot and stopped at the end. Where the
control plane started the script (``under``), the job is the control plane's.
"""

import logging
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError

from weir.channels.authority import open_network
from weir.common.clock import SystemClock
from weir.common.notebook import running_cell
from weir.common.tracebacks import operator_first, without_own_frames
from weir.config import JobConfig
from weir.datastream.execution import ExecutionOptions, JobExecutionResult
from weir.errors import ConfigError, DriverEndedError, JobFailedError, SlotError
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import CheckpointId, JobId, SubtaskId
from weir.jobmaster.collected_output import ComesAgain, Deliveries
from weir.jobmaster.history import JobHistory
from weir.jvm_options import jvm_options
from weir.local.cluster import run_in_process
from weir.managed.managed_driver import ManagedDriver
from weir.protocol.events import JobEvent, Notice
from weir.protocol.lifecycle import JobStatus
from weir.secrets import job_secrets
from weir.spark import python_daemon
from weir.spark.cluster import run_job
from weir.spark.cores import await_master, check_cores, checked_master, cores_max
from weir.spark.encryption import (
    SECRET,
    encryption_settings,
    network_warnings,
)
from weir.spark.job_log import JobLog
from weir.spark.notebook_view import NotebookView
from weir.spark.program import dump_program
from weir.spark.worker_python import check_worker_python, same_as_driver
from weir.spark_settings import LOOPBACK, SETTINGS
from weir.storage.catalog import RestoreRequest, find_state, latest_job
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, store_for
from weir.tools.doctor import check_java, check_user
from weir.worker.versions import installed_versions

logger = logging.getLogger(__name__)

IN_PROCESS = "in-process"
# PySpark's names of errors.
_NO_GATEWAY = "JAVA_GATEWAY_EXITED"
_REMOTE = "CONTEXT_UNAVAILABLE_FOR_REMOTE_CLIENT"
LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties").as_uri()


@dataclass(frozen=True, slots=True)
class JobStarting:
    """A job that is about to run, with its options."""

    job_id: JobId
    graph: JobGraph
    config: JobConfig
    options: ExecutionOptions


Listener = Callable[[JobEvent], None]
Hearer = Callable[[JobStarting], None]
_listeners: list[Listener] = []
_hearers: list[Hearer] = []
# The Spark that a job started for itself, and has not stopped; jobs may start in several threads.
_own_session: SparkContext | None = None
_opening = threading.Lock()
_managed: ContextVar[ManagedDriver | None] = ContextVar("weir_managed", default=None)


@contextmanager
def under(managed: ManagedDriver) -> Iterator[None]:
    """Make ``env.execute()`` within the context run the control plane's job."""
    token = _managed.set(managed)
    try:
        yield
    finally:
        _managed.reset(token)


def listen(listener: Listener) -> None:
    """Call ``listener`` with every event of the jobs that this process runs from now on."""
    _listeners.append(listener)


def unlisten(listener: Listener) -> None:
    """Undo ``listen``."""
    _listeners.remove(listener)


def announce(hearer: Hearer) -> None:
    """Call ``hearer`` with every job that this process runs from now on, before its first event."""
    _hearers.append(hearer)


def unannounce(hearer: Hearer) -> None:
    """Undo ``announce``."""
    _hearers.remove(hearer)


def execute(graph: JobGraph, config: JobConfig, options: ExecutionOptions) -> JobExecutionResult:
    """Run a job to its end.

    Raises:
        JobFailedError: The job failed; its cause is the message.
        DriverEndedError: Another driver continues the job; under the control plane only.
        UserError: The job cannot be started with these settings; it did not run.
    """
    managed = _managed.get()
    if managed is not None:
        managed.check(config)
    store = store_for(config.checkpoints.storage)
    if managed is None:
        job_id, request = _identity(graph.name, config, options, store)
    else:
        job_id, request = managed.job_id, _named(options)
    for hearer in _hearers:
        hearer(JobStarting(job_id, graph, config, options))
    told: tuple[Listener, ...] = ()
    view: NotebookView | None = None
    started = time.monotonic()
    history = JobHistory()
    cell = running_cell()
    if managed is None and not _hearers:  # Nothing else shows the job: a script or a notebook.
        if cell is None:
            told = (JobLog(job_id, graph, config).on_event,)
        else:
            view = NotebookView(job_id, graph, config, history, time.monotonic_ns)
            told = (view.on_event,)
    deliveries = Deliveries(graph, print, pickles=config.allow_pickled_state, rows=options.rows)
    listeners: Sequence[Listener] = (history.on_event, *told, *_listeners)
    given = job_secrets.job_secrets()
    masker = job_secrets.masker()

    def emit(event: JobEvent) -> None:
        event = masker.message(event)
        for listener in listeners:
            listener(event)

    limit = options.collect_limit
    run = _Run(
        graph,
        config,
        job_id,
        restore_from=request,
        emit=emit,
        collect=deliveries.collect,
        take_back=deliveries.take_back,
        is_enough=lambda: (
            (limit is not None and len(deliveries.collected) >= limit) or options.is_enough()
        ),
        managed=managed,
        secrets=given,
    )
    status, cause = run.here() if options.master == IN_PROCESS else run.on_spark(options.master)
    if status is JobStatus.FAILED:
        raise JobFailedError(f"job {job_id} failed: {_shown(masker.text(cause))}")
    result = JobExecutionResult(
        job_id=job_id,
        name=graph.name,
        net_runtime_ms=int((time.monotonic() - started) * 1000),
        collected=tuple(deliveries.collected),
        history=history,
        cell=None if view is None else cell,
    )
    if view is not None:
        view.show_result(result)
    return result


def _shown(cause: str) -> str:
    """A cause as the script gets it: the operator first, and the user's frames only."""
    return without_own_frames(operator_first(cause)).rstrip()


def open_session(master: str | None, slots: int, name: str) -> tuple[SparkContext, bool]:
    """The running Spark context; or a new one, which the caller must stop (True).

    Raises:
        ConfigError: Spark knows no such master, its JVM ended as it started, or the session is one
            of Spark Connect.
    """
    active = SparkContext._active_spark_context
    if active is not None:
        return active, False
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit's JVM runs: a SparkConf knows its settings only once connected.
        SparkContext._ensure_initialized()
    conf = SparkConf()
    known = checked_master(master or conf.get("spark.master") or f"local[{slots}]")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf.setMaster(known.with_retries()).setAppName(name)
    settings = dict(SETTINGS)
    if known.is_on_this_machine:
        check_worker_python(os.environ["PYSPARK_PYTHON"])
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        settings |= python_daemon.settings_for(os.environ["PYSPARK_PYTHON"])
        options = jvm_options()
        settings |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile={LOG_CONFIGURATION} {options}"
            ),
            "spark.executor.extraJavaOptions": options,
        }
    settings |= cores_max(known, slots, lambda key: conf.get(key))
    settings |= encryption_settings(known, has_secret=conf.contains(SECRET))
    for key, value in settings.items():
        conf.setIfMissing(key, value)
    try:
        return SparkContext(conf=conf), True
    except PySparkRuntimeError as error:
        if _REMOTE in str(error):
            raise ConfigError(
                "the session of this script is one of Spark Connect, through which a job cannot "
                "have its slots: start the script by spark-submit or weir run --master, or make a "
                "session with SparkSession.builder.master(...), and unset SPARK_REMOTE"
            ) from None
        if _NO_GATEWAY not in str(error):
            raise
        wrong = [one for one in (check_java(), check_user()) if not one.is_ok]
        why = "; ".join(f"{one.seen}; {one.advice}" for one in wrong) or "its output says why"
        raise ConfigError(f"Spark's JVM ended before it was ready: {why}") from None


@dataclass(frozen=True, slots=True)
class _Run:
    """A job that is about to run, and the receivers of its events and output."""

    graph: JobGraph
    config: JobConfig
    job_id: JobId
    restore_from: RestoreRequest | None
    emit: Listener
    collect: Callable[[SubtaskId, CheckpointId, bytes], None]
    take_back: Callable[[ComesAgain], int]
    is_enough: Callable[[], bool]
    managed: ManagedDriver | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def here(self) -> tuple[JobStatus, str]:
        """Run it without Spark, in this process and thread: to try or debug a pipeline.

        Raises:
            UserError: It could not be sent to slots, as it has to be on Spark.
        """
        dump_program(self.graph, self.config)
        result = run_in_process(
            self.graph,
            self.config,
            job_id=self.job_id,
            restore_from=self.restore_from,
            emit=self.emit,
            collect=self.collect,
            take_back=self.take_back,
            is_enough=self.is_enough,
            secrets=self.secrets,
        )
        return result.status, result.cause

    def on_spark(self, master: str | None) -> tuple[JobStatus, str]:
        """Run it in the running Spark session, or in one of its own."""
        program = dump_program(self.graph, self.config)
        needed = ExecutionGraph(self.graph).slot_count
        slots = needed + self.config.spare_slots
        if master is not None and self.managed is None:
            check_cores(master, needed)
            await_master(master)
        spark, owned = self._session(master, slots)
        try:
            if self.managed is None:
                check_cores(str(spark.master), needed)
            hide_progress_bar(spark)
            host = reachable_host(spark)
            network = open_network(self.job_id, self.config.channels.security, host)
            if self.managed is not None:
                self.managed.plan(self.graph, self.config, spark.applicationId, network.protection)
            clock = SystemClock() if self.managed is None else self.managed.clock
            for warning in network_warnings(network.protection, spark):
                notice = Notice(clock.now_ms(), warning)
                self.emit(notice)
                if self.managed is not None:
                    self.managed.control.post(notice)
            with same_as_driver(spark):
                job = run_job(
                    spark,
                    self.graph,
                    self.config,
                    self.job_id,
                    program=program,
                    store=store_for(self.config.checkpoints.storage),
                    versions=installed_versions(),
                    clock=clock,
                    emit=self.emit,
                    collect=self.collect,
                    take_back=self.take_back,
                    is_enough=self.is_enough,
                    restore_from=self.restore_from,
                    slot_count=slots,
                    host=host,
                    network=network,
                    manager=self.managed,
                    secrets=self.secrets,
                )
        finally:
            if owned:
                _stop(spark)
        if job.left is not None:
            raise DriverEndedError(f"this driver leaves job {self.job_id}: {job.left}")
        return job.status, job.cause

    def _session(self, master: str | None, slots: int) -> tuple[SparkContext, bool]:
        global _own_session
        try:
            with _opening:
                active = SparkContext._active_spark_context
                if active is not None and active is _own_session:
                    raise ConfigError(
                        "a job of this process still runs, on a local Spark that was started for "
                        "it alone: read its records to the end or close its iterator before the "
                        "next job starts, or start a Spark session for all of them beforehand"
                    )
                spark, owned = open_session(master, slots, self.graph.name)
                if owned:
                    _own_session = spark
                return spark, owned
        except Exception as error:
            if self.managed is None:
                raise
            # The cause may be the pipeline's or the cluster's; the job's next driver may succeed.
            raise SlotError(f"Spark could not be started: {error}") from error


def hide_progress_bar(spark: SparkContext) -> None:
    """End Spark's progress bar, as a shell or notebook has one: it writes over lines of the log."""
    try:
        bar = spark._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().stop()
    except (AttributeError, Py4JError) as error:  # Another version of Spark.
        logger.debug("Spark's progress bar stays: %s", error)


def _stop(spark: SparkContext) -> None:
    try:
        spark.stop()
    except (OSError, Py4JError) as error:  # The JVM has ended, which the job's cause tells.
        logger.warning("Spark could not be stopped: %s", error)


def _identity(
    name: str, config: JobConfig, options: ExecutionOptions, store: CheckpointStore
) -> tuple[JobId, RestoreRequest | None]:
    """The job's id, and the checkpoint that was requested by its path.

    The job that took the checkpoint continues where its directory lies in the storage of this run;
    else, or with ``as_new_job``, a new job begins with the checkpoint.

    Raises:
        ConfigError: Two options contradict each other.
        RestoreError: The savepoint does not exist, or no job of this name does.
    """
    fresh = JobId(f"{re.sub(r'[^a-zA-Z0-9_]+', '-', name).strip('-')}-{secrets.token_hex(4)}")
    request, storage = _named(options), config.checkpoints.storage
    if options.restore is None:
        return fresh, None
    if request is None:
        if options.as_new_job:
            raise ConfigError(
                "a new job needs the path of the checkpoint or savepoint to begin with; latest "
                "continues the same job"
            )
        if storage is None:
            raise ConfigError(
                "restoring the latest checkpoint needs the storage it was written to; give "
                "--storage, or env.get_checkpoint_config().set_checkpoint_storage(...)"
            )
        return latest_job(store, name), None
    if options.as_new_job or storage is None:
        return fresh, request
    if request.job_id is None:
        origin = find_state(request).manifest.job_id
        is_here = bool(store.list(JobLayout(origin).attempts))
    else:
        origin = request.job_id
        is_here = os.path.realpath(request.storage) == os.path.realpath(storage)
    return (origin if is_here else fresh), request


def _named(options: ExecutionOptions) -> RestoreRequest | None:
    """The requested checkpoint; None: the job's newest, which needs only the job's id."""
    uri = options.restore
    if uri is None or uri == "latest":
        return None
    if not urlsplit(uri).scheme:
        uri = os.path.abspath(uri)  # Slots run elsewhere.
    return RestoreRequest.parse(
        uri,
        rewinds_output=options.rewinds_output,
        claims=options.claims,
        origin_is_over=options.origin_is_over,
    )


def reachable_host(spark: SparkContext) -> str:
    """The host at which executors reach the driver: the one that Spark itself uses.

    Spark has addresses of IPv6 in brackets, as they are written in a URL.
    """
    return (spark.getConf().get("spark.driver.host") or LOOPBACK).strip("[]")
