"""The protocol with drivers: their events are applied once, their commands handed out.

The HTTP side is ``controlplane.driver_http``.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, get_args

from django.db import DataError, IntegrityError, connection, transaction

from checkpoints.coordinator.shell import pump
from checkpoints.models import CoordinatorRow
from checkpoints.verdict import evidence
from controlplane.base import clock, logs
from controlplane.base.errors import Invalid, NotFound, Unauthorized
from controlplane.base.threads import Unavailable
from jobs import services
from jobs.drivers import drivers
from jobs.events import driver_events
from jobs.inspections import store as inspections
from jobs.models import LIVE_DRIVERS, Driver, DriverStatus, Job, Operator, OutboxCommand
from weir.errors import ProtocolError
from weir.protocol import wire
from weir.protocol.driver_messages import (
    COMMANDS_MAX,
    BatchApplied,
    CommandBatch,
    DriverCommand,
    DriverEvent,
    EventBatch,
    JobPlanned,
    NumberedCommand,
)
from weir.protocol.inspection import Inspected
from weir.protocol.messages import CheckpointingStarted, CoordinatorEvent, TimeLost
from weir.wire import batches

logger = logging.getLogger(__name__)

HELD_UP_MS = 2_000  # After as long without an answer, a driver takes the control plane for away.
_COORDINATORS: tuple[type, ...] = get_args(CoordinatorEvent)


def authenticate(job_id: str, token: str) -> int:
    """The key of the driver with this token, which may speak for the job.

    It costs one query, by the token's index.

    Raises:
        NotFound, Unauthorized, DriverFenced: The caller may not speak for the job.
    """
    return _authenticated(job_id, token).pk


def receive(job_id: str, token: str, body: bytes, version: int = batches.VERSION_MAX) -> bytes:
    """Apply a driver's batch of events; the answer gives the number up to which they count.

    Raises:
        Invalid: The batch cannot be read, or does not follow the events applied before.
        NotFound, Unauthorized, DriverFenced: The sender may not speak for the job.
    """
    batch = _decoded(body, version)
    with logs.about(job=job_id):
        try:
            with transaction.atomic():
                applied = _apply(job_id, token, batch)
        except (DataError, IntegrityError, ProtocolError) as error:
            # No retry repairs the batch, so the driver must not send it for ever.
            logger.exception("the driver's batch of events cannot be stored")
            raise Invalid(f"an event of the batch cannot be stored: {error}") from error
    return batches.encode_applied(applied, version)


def take_commands(
    job_id: str, token: str, after: int, version: int = batches.VERSION_MAX
) -> CommandBatch:
    """The commands after number ``after``; those up to it are taken, and dropped.

    So are those that a driver of this version does not know, which it would end for.

    Drivers poll often, so it locks nothing. Commands of a job are committed in the order of their
    numbers, since the job's lock is held when they get them. They are read before the driver is
    looked up: the driver that is the newest after that was so when these were written. A poll is no
    sign of life: it is repeated while its driver may hang.

    Raises:
        Invalid: No command ``after`` was ever given out.
        NotFound, Unauthorized, DriverFenced: The caller may not speak for the job.
    """
    waiting = OutboxCommand.objects.filter(job=job_id, pk__gt=after).order_by("pk")
    rows = list(waiting.values_list("pk", "message")[:COMMANDS_MAX])
    driver = _authenticated(job_id, token)
    if after > driver.commands_taken:
        _drop_taken(driver, after)
    commands = [NumberedCommand(pk, _command(message)) for pk, message in rows]
    known = batches.known(commands, version)
    if len(known) < len(commands):
        kept = {command.number for command in known}
        unknown = [command.number for command in commands if command.number not in kept]
        OutboxCommand.objects.filter(pk__in=unknown).delete()
    return CommandBatch(known, sent_at_ms=clock.now_ms() if known else None)


# Events -------------------------------------------------------------------------------------------


def _apply(job_id: str, token: str, batch: EventBatch) -> BatchApplied:
    """Apply the new events of a batch, and acknowledge all up to its last."""
    job = services.locked(job_id)
    driver = drivers.authenticate(job, token)
    now = clock.now()
    expected = driver.applied_up_to + 1
    if batch.first_number > expected:
        raise Invalid(
            f"the batch begins with event {batch.first_number}, but event {expected} is expected: "
            "those between were never applied",
            expected=expected,
        )
    now_ms = clock.to_ms(now)
    silent_ms = 0 if driver.heard_at is None else now_ms - clock.to_ms(driver.heard_at)
    sent_at_ms = now_ms if batch.sent_at_ms is None else min(batch.sent_at_ms, now_ms)
    new = batch.events[expected - batch.first_number :]
    with logs.about(driver=driver.number):
        sent_at = clock.from_ms(sent_at_ms)
        drivers.heard(driver, now, batch.load, sent_at=sent_at, applied=len(new))
        lost_ms = batch.away_ms + _held_up_ms(now_ms - sent_at_ms)
        # No longer than the driver was silent: a repeated batch reports the same time again.
        _note_time_lost(job, min(lost_ms, silent_ms), now_ms)
        if new:
            _fold(job, driver, new, now)
    return BatchApplied(driver.applied_up_to, now_ms)


def _held_up_ms(on_its_way_ms: int) -> int:
    """The time on its way of a batch that the control plane did not take for a while."""
    return on_its_way_ms if on_its_way_ms >= HELD_UP_MS else 0


def _fold(job: Job, driver: Driver, new: Sequence[DriverEvent], now: datetime) -> None:
    """Apply events in order: each run of one kind by the app that handles it."""
    left, now_ms = len(new), clock.to_ms(now)
    for is_coordinators, run in _runs(new):
        if not _speaks(driver):
            # The driver reported itself lost: its successor finds out what happened after that.
            logger.warning("driver %d is lost; %d of its events are dropped", driver.number, left)
            return
        if is_coordinators:
            _check_plans(job, run)
            pump(job, run, now_ms=now_ms)
            # After a completed checkpoint an operation may have replaced this driver.
            driver.refresh_from_db(fields=["status", "stop_requested_at"])
        else:
            driver_events.apply(job, driver, run, now)
            _keep_answers(job, run)
            evidence.note_stalls(job, run, now_ms)
        left -= len(run)


def _keep_answers(job: Job, run: Sequence[DriverEvent]) -> None:
    """Keep answers to inspections once the batch counts; without Redis they are lost."""
    answers = [event for event in run if isinstance(event, Inspected)]

    def keep() -> None:
        try:
            inspections.answer(job.pk, answers)
        except Unavailable as away:
            logger.warning("%d answers to inspections are lost: %s", len(answers), away)

    if answers:
        transaction.on_commit(keep)


def _check_plans(job: Job, run: Sequence[CoordinatorEvent]) -> None:
    """Refuse a coordinator's plan with operators or subtasks that the job's plan does not have.

    Raises:
        Invalid: The message names the operator.
    """
    for event in run:
        if not isinstance(event, CheckpointingStarted):
            continue
        left = dict(Operator.objects.filter(job=job).values_list("uid", "parallelism"))
        for chain in event.plan.chains:
            if chain.head not in chain.operators:
                raise Invalid(f"plan.chains: the chain of {chain.head} does not list it")
            for uid in chain.operators:
                parallelism = left.pop(uid, None)
                if parallelism is None:
                    raise Invalid(f"plan.chains: {uid} is not in the job's plan, or in two chains")
                if chain.parallelism > parallelism:
                    raise Invalid(
                        f"plan.chains: {uid} has {chain.parallelism} subtasks, and {parallelism} "
                        "in the job's plan"
                    )


def _runs(new: Sequence[DriverEvent]) -> Iterator[tuple[bool, list[Any]]]:
    for is_coordinators, run in groupby(new, key=lambda e: isinstance(e, _COORDINATORS)):
        yield is_coordinators, list(run)


def _speaks(driver: Driver) -> bool:
    """Whether the driver still speaks for its job; events may have changed its row."""
    winds_up = driver.status == DriverStatus.ENDED and driver.stop_requested_at is None
    return winds_up or driver.status in LIVE_DRIVERS


def _note_time_lost(job: Job, away_ms: int, now_ms: int) -> None:
    if away_ms > 0 and CoordinatorRow.objects.filter(job=job).exists():
        pump(job, [TimeLost(away_ms)], now_ms=now_ms)


def _decoded(body: bytes, version: int) -> EventBatch:
    try:
        batch = batches.decode_batch(body, version)
    except ProtocolError as error:
        raise Invalid(f"the body cannot be read as a batch of events: {error}") from error
    if sum(isinstance(event, JobPlanned) for event in batch.events) > 1:
        raise Invalid("events: a driver plans its job once")
    return batch


# Commands -----------------------------------------------------------------------------------------


def _authenticated(job_id: str, token: str) -> Driver:
    try:
        return drivers.authenticate(Job(pk=job_id), token)
    except Unauthorized:
        if not Job.objects.filter(pk=job_id).exists():
            raise NotFound(f"there is no job {job_id!r}") from None
        raise


def _drop_taken(driver: Driver, after: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM jobs_outboxcommand_id_seq")
        (newest,) = cursor.fetchone()
    if after > newest:
        raise Invalid(
            f"command {after} was never given out, the newest is {newest}: this driver has talked "
            "to another control plane"
        )
    # In this order: commands that a crash in between leaves behind are dropped with the next ones.
    Driver.objects.filter(pk=driver.pk, commands_taken__lt=after).update(commands_taken=after)
    OutboxCommand.objects.filter(job=driver.job_id, pk__lte=after).delete()


def _command(message: dict[str, Any]) -> DriverCommand:
    command: Any = wire.decode(message)
    assert isinstance(command, get_args(DriverCommand))
    known: DriverCommand = command
    return known
