"""Everything at once, on real transactions: 200 seeded runs, each checked against all invariants.

A run is a few rounds. In each round several threads, each with a connection of its own, do what web
processes, Celery workers and drivers do to one job at the same time: the same batch twice, a
request for a checkpoint, ticks, a cancel, a driver found to be gone. The clock jumps by up to
minutes in either direction from round to round. Between rounds, and at the end, rows and state must
agree.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection, transaction

from checkpoints import driver_protocol, ticks
from checkpoints.coordinator import shell
from checkpoints.models import Checkpoint, SubtaskAck
from checkpoints.operations import savepoints
from checkpoints.retention import discards, finalization, sweep
from controlplane.accounts.models import Role, User
from controlplane.base import clock
from controlplane.base.errors import Refusal
from jobs import due_jobs, operations
from jobs import services as job_services
from jobs.models import (
    OPEN_OPERATIONS,
    Driver,
    DriverStatus,
    Job,
    JobEvent,
    JobException,
    Operation,
    OutboxCommand,
)
from tests import builders as protocol
from tests import factories
from tests.database.checkpoints.line import Line
from tests.database.jobs import builders as jobs
from tests.seeds import share
from weir.protocol.coordinator import check_invariants
from weir.protocol.driver_messages import EventBatch
from weir.protocol.lifecycle import CheckpointStatus, JobStatus
from weir.protocol.messages import CheckpointRequested, JobEnded, Tick

RUNS_AT_ONCE = 20  # Seeds of one test: a fresh database for each would take most of the time.
SEEDS = share(100, block=RUNS_AT_ONCE)
ROUNDS = 4
JUMP_MS = 240_000
THREADS = 4

_ACK = ("checkpoint__number", "operator", "index")
_UNSETTLED = (CheckpointStatus.PENDING.value, CheckpointStatus.FINALIZING.value)


class Crew:
    """A few threads with a connection each, which do things at the same moment."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(THREADS + 1)
        self._work: list[list[Callable[[], Any]]] = [[] for _ in range(THREADS)]
        self._is_over = False
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def do(self, *work: Callable[[], Any]) -> None:
        """Do all of it, as much as possible at once; refusals are answers like others."""
        for index, one in enumerate(work):
            self._work[index % THREADS].append(one)
        self._barrier.wait(30)
        self._barrier.wait(60)
        assert not self.failures, self.failures

    def close(self) -> None:
        self._is_over = True
        self._barrier.wait(30)
        for thread in self._threads:
            thread.join(10)

    def _run(self, index: int) -> None:
        while True:
            self._barrier.wait(120)
            if self._is_over:
                connection.close()
                return
            for one in self._work[index]:
                try:
                    one()
                except Refusal:
                    pass
                except Exception as error:
                    self.failures.append(error)
            self._work[index].clear()
            self._barrier.wait(60)


@dataclass
class Run:
    """One job, its drivers one after another, and what happens to them."""

    seed: int
    actor: User
    line: Line = field(init=False)
    drivers: int = 1
    attempt: int = 1
    applied: int = 0  # Events of the newest driver that counted at the last look.

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.line = Line.running(
            interval_ms=self.random.choice([None, 10, 60_000]),
            timeout_ms=self.random.choice([10, 1_000, 600_000]),
            retained_max=self.random.choice([1, 2]),
            concurrent_max=self.random.choice([1, 2]),
            tolerable_failures=1_000,
        )
        self.applied = self.line.number - 1
        self.offset_ms = 0

    # What happens in a round.

    def round(self, crew: Crew) -> None:
        """A few things at once."""
        self.offset_ms += self.random.randint(-JUMP_MS, JUMP_MS)
        events = self._events()
        batch = EventBatch(self.line.number, events, self.random.choice([0, 0, 5_000]))
        self.line.number += len(events)
        line = self.line
        work: list[Callable[[], Any]] = [
            lambda: line.send(batch),
            lambda: line.send(batch),  # The answer was lost, and another web process gets it.
        ]
        choices: list[tuple[float, Callable[[], Any]]] = [
            (0.6, lambda: savepoints.request_checkpoint(self.actor, line.job_id)),
            (0.4, lambda: savepoints.request_checkpoint(self.actor, line.job_id, key="once")),
            (0.6, self._tick),
            (0.6, self._tick),
            (0.3, lambda: ticks.tick_one(line.job_id)),
            (0.5, lambda: driver_protocol.take_commands(line.job_id, line.token, line.taken)),
            (0.3, finalization.settle_driverless),
            (0.3, discards.discard_due),
            (0.1, due_jobs.relaunch_due),
            (0.12, lambda: jobs.lose(line.job)),
            (0.06, lambda: job_services.restart(self.actor, line.job_id)),
            (0.05, lambda: job_services.cancel(self.actor, line.job_id)),
        ]
        work += [one for chance, one in choices if self.random.random() < chance]
        self.random.shuffle(work)
        crew.do(*work)

    def follow(self) -> None:
        """Do the next step of the job's driver, or of the launcher; alone."""
        driver = jobs.driver_of(self.line.job)
        if driver.number > self.drivers and driver.status == DriverStatus.REQUESTED:
            self.drivers, self.attempt = driver.number, self.attempt + 1
            self.line = Line.for_job(self.line.job)
            state = self.line.state
            self.line.come_up(
                self.attempt,
                restored=state.latest_completed_id,
                retained_max=self.line.state.config.retained_max,
                concurrent_max=state.config.concurrent_max,
                timeout_ms=state.config.timeout_ms,
                interval_ms=state.config.interval_ms,
                tolerable_failures=1_000,
            )
            self.applied = self.line.number - 1

    def _events(self) -> tuple[Any, ...]:
        """Reports of the driver on what its state knows: some late, some never triggered."""
        state = self.line.state
        events: list[Any] = []
        for pending in state.pending:
            number = int(pending.checkpoint_id)
            if pending.is_finalizing:
                fails = self.random.random() < 0.15
                events.append(protocol.not_written(number) if fails else protocol.written(number))
                continue
            missing = {m for m in pending.missing if str(m).startswith(("source", "sink"))}
            for chain in sorted(missing):
                if self.random.random() < 0.85:
                    events.append(protocol.ack(str(chain), number, attempt=state.attempt))
            if self.random.random() < 0.05:
                events.append(protocol.decline("sink-0", number, attempt=state.attempt))
            if self.random.random() < 0.5:
                events.append(protocol.written(number))  # Not asked for, unless by now.
        if self.random.random() < 0.1:
            events.append(protocol.ack("sink-1", state.next_id + 5, attempt=state.attempt or 1))
        if self.random.random() < 0.3 and state.plan is not None:
            events.append(CheckpointRequested(f"final-{self.seed}"))
        return tuple(events)

    def _tick(self) -> None:
        with transaction.atomic():
            job = Job.objects.select_for_update().get(pk=self.line.job_id)
            shell.pump(job, [Tick()], now_ms=clock.now_ms() + self.offset_ms)

    # What must hold.

    def check(self) -> None:
        """Rows agree with the state, and the state with itself."""
        job = self.line.job
        state = shell.state_of(job)
        check_invariants(state)
        rows = {row.number: row for row in Checkpoint.objects.filter(job=job)}
        assert sorted(rows) == list(range(1, state.next_id)), "each id has a row"
        unsettled = {n: row.status for n, row in rows.items() if row.status in _UNSETTLED}
        assert unsettled == {int(p.checkpoint_id): p.status.value for p in state.pending}
        completed = {n for n, r in rows.items() if r.status == "completed"}
        if state.ended is None:
            assert completed == {int(c.checkpoint_id) for c in state.completed}
        acks = SubtaskAck.objects.filter(checkpoint__job=job)
        distinct = Counter(n for n, _, _ in set(acks.values_list(*_ACK)))
        for number, row in rows.items():
            assert distinct[number] == row.acknowledged_count, number
            if row.status in ("completed", "subsumed", "discarded", "finalizing"):
                assert row.acknowledged_count == row.subtask_count, number
            assert not (
                row.discard_due_at and row.number in {c.checkpoint_id for c in state.completed}
            )
            if row.parent is not None:
                assert row.parent.number < row.number
        happened = JobEvent.objects.filter(job=job, kind__startswith="checkpoint.")
        told = Counter((e.facts["checkpoint"], e.planned, e.reason) for e in happened)
        settled = (r for r in rows.values() if r.status not in _UNSETTLED)
        assert told == Counter((r.number, r.status == "aborted", r.reason) for r in settled)
        # All of a batch or, once the driver is fenced, none of it.
        applied = self.line.driver.applied_up_to
        assert applied in (self.line.number - 1, self.applied)
        self.applied = applied
        internal = JobException.objects.filter(job=job, kind="internal")
        for text in internal.values_list("text", flat=True):
            assert "never triggered" in text or "no manifest was requested" in text, text
        drivers = Driver.objects.filter(job=job).order_by("number")
        numbers = list(drivers.values_list("number", flat=True))
        assert numbers == list(range(1, len(numbers) + 1))

    def finish(self) -> None:
        """Bring the job to an end; nothing may be left open."""
        job = self.line.job
        if not job.is_over:
            self.follow()
            state = self.line.state
            outcome = [protocol.written(p.checkpoint_id) for p in state.pending if p.is_finalizing]
            self._end_by_driver(outcome)
            job = self.line.job
        if not job.is_over:
            Job.objects.filter(pk=job.pk).update(cancel_due_at=clock.now())
            due_jobs.cancel_due()
            due_jobs.relaunch_due()
        Driver.objects.filter(job=job).update(heard_at=None)
        finalization.settle_driverless()
        sweep.end_driverless()
        self.check()
        assert not self.line.state.pending
        sweep.drop_commands()
        assert not OutboxCommand.objects.filter(job=job).exists()
        Operation.objects.filter(job=job).update(deadline_at=clock.now())
        operations.expire_due()
        assert not Operation.objects.filter(job=job, status__in=OPEN_OPERATIONS).exists()

    def _end_by_driver(self, outcome: list[Any]) -> None:
        try:
            if self.line.job.status == JobStatus.RUNNING:
                finished = JobStatus.FINISHED
                self.line.post(*outcome, jobs.changed(finished), JobEnded(finished))
        except Refusal:
            pass  # It is fenced; the control plane ends the job.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", range(0, SEEDS, RUNS_AT_ONCE))
def test_rows_and_state_agree_after_concurrent_events(first: int) -> None:
    actor = factories.user(Role.OPERATOR, "olga")
    crew = Crew()
    try:
        for seed in range(first, first + RUNS_AT_ONCE):
            run = Run(seed, actor)
            try:
                for _ in range(ROUNDS):
                    run.round(crew)
                    run.check()
                    run.follow()
                run.finish()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
    finally:
        crew.close()
