"""``PipelineHarness``: a whole pipeline that a test steps by hand.

Every call runs all work there is to do and returns when nothing is left but to wait for records or
for time, neither of which comes by itself. So a test sees the same at every run.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

from weir import fault_points
from weir.common.row_codec import decode_rows
from weir.common.tracebacks import without_own_frames
from weir.errors import ConfigError, InternalError, JobFailedError
from weir.ids import CheckpointId, JobId, OperatorId, SubtaskId
from weir.jobmaster.collected_output import CollectedRows, ComesAgain
from weir.jobmaster.job_master import JobMaster
from weir.local.event_queue import EventQueue, Latencies
from weir.protocol.events import AttemptStarted, JobEvent
from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus, SubtaskStatus
from weir.protocol.messages import SubtaskChanged
from weir.protocol.pending import CompletedCheckpoint
from weir.storage.memory import MemoryStore
from weir.testing.captured_pipeline import Pipeline, capture_pipeline
from weir.testing.captured_sink import CapturedSinkOperator
from weir.testing.elements import Watermark
from weir.testing.manual_clock import ManualClock
from weir.testing.stepped_cluster import KillPoint, SteppedCluster
from weir.worker.chain_output import ChainedOperator
from weir.worker.versions import installed_versions

ACTIONS_MAX = 20_000  # Without time passing: slices of records, messages. A call takes hundreds.
JOB = JobId("harness")


class PipelineHarness:
    """A running pipeline whose sources, time, checkpoints and failures are a test's; a context.

    Operators, sources and sinks are named by uid or, where it is the only one, by name. A method
    that runs the pipeline raises ``JobFailedError`` where a function fails.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        job: str | None = None,
        parallelism: int | None = None,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        own_sources: Collection[str] = (),
        own_sinks: Collection[str] = (),
        start_ms: int = 0,
    ) -> None:
        """Build the pipeline and start its job, which waits for records.

        Args:
            pipeline: A function that builds it on the environment that it is given, with or without
                ``env.execute()``; or the path or module of a script.
            job: The name of the job, where the pipeline executes several.
            parallelism: In place of the pipeline's own.
            parameters: The arguments of the pipeline, as with ``--arg``.
            secrets: The values that functions may get, by name.
            own_sources: Sources that read their own input, instead of being fed; it must end.
            own_sinks: Sinks that write their own output, instead of being captured.
            start_ms: The processing time at first.

        Raises:
            WeirError: The pipeline cannot be built.
            JobFailedError: A function failed while it was opened.
        """
        self._pipeline = capture_pipeline(
            pipeline,
            job=job,
            parallelism=parallelism,
            parameters=parameters or {},
            own_sources=own_sources,
            own_sinks=own_sinks,
        )
        self._clock = ManualClock(start_ms)
        self._events = EventQueue(self._clock)
        self._restored: list[CheckpointId | None] = []  # By each attempt.
        self._failure: str | None = None
        self._committed = {sink: CollectedRows() for sink in self._pipeline.kept}
        self._requests = 0
        graph, config = self._pipeline.graph, self._pipeline.config
        self._cluster = SteppedCluster(
            graph, config, JOB, events=self._events, conditions=Latencies()
        )
        self._master = JobMaster(
            graph,
            config,
            JOB,
            program=b"",
            store=MemoryStore(),
            versions=installed_versions(),
            cluster=self._cluster,
            clock=self._clock,
            emit=self._on_event,
            collect=self._commit,
            take_back=self._take_back,
            secrets=secrets,
            seed=0,
        )
        self._cluster.start(self._master)
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # Input and time.

    def send(self, *elements: Any, to: str | None = None) -> None:
        """Feed records, ``Timed`` records and ``Watermark`` to a source, and run what follows.

        ``to`` names the source; None: the only one that is fed. Where the source assigns event
        time, records that are not ``Timed`` get it from there, and watermarks follow from it.

        Raises:
            ConfigError: There is no such source, several without ``to``, or the inputs have ended.
            SchemaError: A record is not of the source's type.
        """
        self._check_open()
        feeds = self._pipeline.feeds
        feed = feeds[self._one(feeds, to, "source")]
        if feed.has_ended:
            raise ConfigError("the inputs have ended (finish); use a new harness to send more")
        feed.add(elements)
        self._settle()

    def advance_watermark(self, to_ms: int, *, source: str | None = None) -> None:
        """Send a watermark from one source, or from all that are fed."""
        self._check_open()
        feeds = self._pipeline.feeds
        for uid in feeds if source is None else [self._one(feeds, source, "source")]:
            feeds[uid].add([Watermark(to_ms)])
        self._settle()

    def advance_processing_time(self, by_ms: int) -> None:
        """Let time pass: timers of processing time fire in their order."""
        self._check_open()
        if by_ms < 0:
            raise ConfigError(f"time does not go back, by {by_ms} ms")
        self._settle(self._clock.now_ms() + by_ms)

    @property
    def processing_time_ms(self) -> int:
        """The processing time, milliseconds since the epoch."""
        return self._clock.now_ms()

    def finish(self) -> None:
        """End all inputs: event time ends, all is committed, and the job finishes."""
        if self.status is JobStatus.FINISHED:
            return  # Sources of its own have ended by themselves.
        self._check_open()
        for feed in self._pipeline.feeds.values():
            feed.has_ended = True
        self._settle()
        if (status := self._master.status) is not JobStatus.FINISHED:
            raise InternalError(f"the inputs have ended, and the job is {status}")

    # Checkpoints and failures.

    def checkpoint(self) -> int:
        """Take a checkpoint, let sinks commit what it covers, and return its id.

        Raises:
            ConfigError: It was not taken; the message says why.
        """
        completed, why = self._checkpoint()
        if completed is None:
            raise ConfigError(f"the checkpoint was not taken: {why}")
        return completed.checkpoint_id

    def kill(self, slot: int = 0) -> None:
        """Kill the worker process of a slot; the job restarts from its newest checkpoint.

        Raises:
            ConfigError: The job has no such slot.
        """
        self._check_open()
        processes = {process.slot_index: process for process in self._cluster.processes.values()}
        if slot not in processes:
            raise ConfigError(f"there is no slot {slot}; the job has 0 to {len(processes) - 1}")
        self._cluster.kill(processes[slot])
        self._settle()

    def kill_in_checkpoint(self, point: KillPoint) -> int | None:
        """Begin a checkpoint and kill a worker process in it; the job restarts.

        Returns:
            The checkpoint that was restored; None: there was none, so the job began anew.

        Raises:
            ConfigError: The checkpoint did not come to that point.
        """
        self._cluster.armed = KillPoint(point)
        try:
            _, why = self._checkpoint()
            if self._cluster.armed is not None:
                raise ConfigError(f"the checkpoint did not come to {point}: {why}")
        finally:
            self._cluster.armed = None
        return self._restored[-1]

    @property
    def restarts(self) -> int:
        """The number of restarts so far."""
        return max(0, len(self._restored) - 1)

    @property
    def status(self) -> JobStatus:
        """The status of the job."""
        return self._master.status

    # What there is to see.

    def output(self, sink: str | None = None) -> list[Any]:
        """The records of a sink: those committed, then those that wait for a checkpoint.

        ``sink`` names it; None: the only one that is captured. Records that wait are dropped and
        made again when the job restarts.
        """
        uid = self._one(self._pipeline.kept, sink, "sink")
        kept = self._pipeline.kept[uid]
        waiting: list[int] = []
        for chained in self._subtasks(uid):
            assert isinstance(chained.operator, CapturedSinkOperator)
            waiting += chained.operator.uncommitted
        return [kept[index] for index in (*self._committed[OperatorId(uid)].rows, *waiting)]

    def committed(self, sink: str | None = None) -> list[Any]:
        """The records of a sink that completed checkpoints cover, in the order of their commit."""
        uid = self._one(self._pipeline.kept, sink, "sink")
        return [self._pipeline.kept[uid][index] for index in self._committed[OperatorId(uid)].rows]

    @property
    def sinks(self) -> list[str]:
        """The ids of the sinks that are captured."""
        return list(self._pipeline.kept)

    @property
    def sources(self) -> list[str]:
        """The ids of the sources that are fed."""
        return list(self._pipeline.feeds)

    def state(self, operator: str, key: Any) -> dict[str, Any]:
        """Copies of the values that an operator keeps under a key, by the name of their state.

        Of a reducing or aggregating state it is the accumulator, of a vectorised aggregate the
        figures by column.

        Raises:
            ConfigError: There is no such operator, or the job has ended.
            UserError: The operator has no keyed state.
        """
        return self._owner(operator, key).state.values_of(key)

    def timers(self, operator: str, key: Any) -> dict[str, list[int]]:
        """The times of a key's timers by ``"event_time"`` and ``"processing_time"``, ascending.

        Raises:
            ConfigError: There is no such operator, or the job has ended.
            UserError: The operator has no keyed state.
        """
        return self._owner(operator, key).state.times_of(key)

    def close(self) -> None:
        """Cancel the job if it still runs, and close its functions."""
        if self._master.status in JOB_TRANSITIONS:
            self._cluster.enter(self._master.cancel)
        while self._cluster.processes and self._events.run_next():
            pass  # The workers stop.

    # Running.

    def _checkpoint(self) -> tuple[CompletedCheckpoint | None, str]:
        self._check_open()
        answers: list[tuple[CompletedCheckpoint | None, str]] = []
        self._requests += 1
        request_id = f"by-hand-{self._requests}"
        self._cluster.enter(
            lambda: self._master.checkpoint(
                request_id, lambda completed, why: answers.append((completed, why))
            )
        )
        self._settle()
        if not answers:
            raise InternalError("the checkpoint has no outcome, although all work was done")
        return answers[0]

    def _settle(self, until_ms: int | None = None) -> None:
        """Run all that is due, and what becomes due until then; None: now."""
        end_ns = self._clock.monotonic_ns() if until_ms is None else until_ms * 1_000_000
        with fault_points.listening(self._cluster.on_point):
            self._cluster.rouse()
            self._run_until(end_ns)
            if end_ns > self._clock.monotonic_ns():
                self._clock.wait_until(end_ns)
                self._cluster.rouse()
                self._run_until(end_ns)
        self._raise_failure()

    def _run_until(self, end_ns: int) -> None:
        left, now_ns = ACTIONS_MAX, self._clock.monotonic_ns()
        while self._failure is None and (due_ns := self._events.next_ns) is not None:
            if due_ns > end_ns:
                return
            self._events.run_next()
            left -= 1
            if now_ns != self._clock.monotonic_ns():
                left, now_ns = ACTIONS_MAX, self._clock.monotonic_ns()
            if not left:
                raise ConfigError(
                    "the pipeline does not come to rest: a source of own_sources has no end, or "
                    "timers register others that are due already"
                )

    def _raise_failure(self) -> None:
        if self._failure is None and self.status is JobStatus.FAILED:
            self._failure = self._master.cause
        if self._failure is not None:
            self.close()
            raise JobFailedError(without_own_frames(self._failure))

    def _check_open(self) -> None:
        if self.status not in JOB_TRANSITIONS:
            raise ConfigError(f"the job is {self.status}; use a new harness")

    # What the job master tells.

    def _on_event(self, event: JobEvent) -> None:
        match event:
            case AttemptStarted(restored_checkpoint=restored):
                self._restored.append(restored)
            case SubtaskChanged(status=SubtaskStatus.FAILED) if "lost_peer" not in event.details:
                self._failure = f"{event.chain} failed\n{event.cause.strip()}"

    def _commit(self, subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes) -> None:
        if subtask.operator in self._committed:
            rows = decode_rows(payload, pickles=self._pipeline.config.allow_pickled_state)
            self._committed[subtask.operator].add(checkpoint_id, rows)

    def _take_back(self, comes_again: ComesAgain) -> int:
        for committed in self._committed.values():
            committed.take_back(comes_again)
        return 0

    # Names.

    def _one(self, among: Mapping[str, Any], named: str | None, kind: str) -> str:
        if named is not None:
            return self._pipeline.operator(named, among).uid
        if len(among) != 1:
            raise ConfigError(
                f"the pipeline has {len(among)} {kind}s; name one of {', '.join(among)}"
                if among
                else f"no {kind} of the pipeline is the harness's"
            )
        return next(iter(among))

    def _subtasks(self, uid: str) -> Iterator[ChainedOperator]:
        processes = sorted(self._cluster.processes.values(), key=lambda one: one.slot_index)
        for process in processes:
            for subtask in process.worker.subtasks:
                for chained in subtask.operators:
                    if chained.subtask.operator == uid:
                        yield chained

    def _owner(self, operator: str, key: Any) -> ChainedOperator:
        self._check_open()
        uid = self._pipeline.operator(operator).uid
        return next(one for one in self._subtasks(uid) if one.state.owns(key))
