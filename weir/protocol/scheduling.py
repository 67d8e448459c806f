"""Scheduling of trigger requests: run one now, let it wait, or refuse it.

Requests wait in one ordered queue; after each event ``decide`` looks at its head. A savepoint goes
before a checkpoint, and a user's request before a periodic one.

Source: Flink, CheckpointRequestDecider.
"""

from bisect import insort_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weir.config import CheckpointConfig, CheckpointingMode
from weir.errors import ProtocolError
from weir.ids import CheckpointId
from weir.protocol.elements import Alignment, BarrierOptions, CheckpointKind
from weir.protocol.lifecycle import FailureReason
from weir.protocol.pending import (
    SAVEPOINT_KINDS,
    STOP_KINDS,
    PendingCheckpoint,
    TriggerRequest,
)

QUEUE_MAX = 1_000  # Flink's bound on requests that wait.


@dataclass(frozen=True, slots=True)
class Run:
    """The head of the queue is to be triggered now."""

    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class Refuse:
    """The head of the queue came too early; the next periodic trigger is at ``retry_at_ms``."""

    request: TriggerRequest
    reason: FailureReason
    retry_at_ms: int


Decision: TypeAlias = Run | Refuse | None  # None: the head, if any, goes on waiting.


def decide(
    queue: Sequence[TriggerRequest],
    pending: Sequence[PendingCheckpoint],
    config: CheckpointConfig,
    *,
    last_completion_ms: int | None,
    now_ms: int,
) -> Decision:
    """Decide whether the head of the queue runs, is refused or waits."""
    if not queue:
        return None
    head = queue[0]
    if any(checkpoint.kind in STOP_KINDS for checkpoint in pending):
        return None  # Behind the barrier of a stop nothing flows until the stop is settled.
    if len(pending) >= config.concurrent_max and not is_forced(head, config):
        return None
    if head.is_periodic and last_completion_ms is not None:
        # A clock set back must not stretch the pause beyond its own length.
        wait_ms = min(last_completion_ms + config.min_pause_ms - now_ms, config.min_pause_ms)
        if wait_ms > 0:
            reason = FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
            return Refuse(head, reason, retry_at_ms=now_ms + wait_ms)
    return Run(head)


def enqueue(
    queue: tuple[TriggerRequest, ...], request: TriggerRequest, config: CheckpointConfig
) -> tuple[tuple[TriggerRequest, ...], TriggerRequest | None]:
    """Insert a request in order; the second value is the request that overflowed, if any."""
    if len(queue) >= QUEUE_MAX and not queue[-1].is_periodic:
        return queue, request  # Never push out an earlier request of a user.
    ordered = list(queue)
    insort_right(ordered, request, key=lambda waiting: _rank(waiting, config))
    if len(ordered) > QUEUE_MAX:
        return tuple(ordered[:-1]), ordered[-1]
    return tuple(ordered), None


def is_forced(request: TriggerRequest, config: CheckpointConfig) -> bool:
    """Whether a request runs beside any number of others.

    Savepoints do. Where checkpoints may be unaligned or stop the world, savepoints wait instead,
    since such a checkpoint and another one cannot be under way together.
    """
    return (
        request.kind in SAVEPOINT_KINDS
        and config.alignment_timeout_ms is None
        and config.mode is not CheckpointingMode.STOP_THE_WORLD
    )


def barrier_options(
    config: CheckpointConfig,
    kind: CheckpointKind,
    target: str | None = None,
    *,
    base_id: CheckpointId | None = None,
) -> BarrierOptions:
    """The barrier options of a checkpoint of this kind.

    Savepoints are always aligned, and build on no other checkpoint.
    """
    if kind in SAVEPOINT_KINDS:
        return BarrierOptions(kind=kind, alignment=Alignment.ALIGNED, target=target)
    if config.mode is CheckpointingMode.AT_LEAST_ONCE:
        return BarrierOptions(kind=kind, alignment=Alignment.AT_LEAST_ONCE, base_id=base_id)
    if config.mode is CheckpointingMode.STOP_THE_WORLD:
        return BarrierOptions(kind=kind, alignment=Alignment.STOP_THE_WORLD, base_id=base_id)
    if config.alignment_timeout_ms == 0:
        return BarrierOptions(kind=kind, alignment=Alignment.UNALIGNED, base_id=base_id)
    return BarrierOptions(
        kind=kind,
        alignment=Alignment.ALIGNED,
        alignment_timeout_ms=config.alignment_timeout_ms,
        base_id=base_id,
    )


def effective_interval_ms(config: CheckpointConfig) -> int | None:
    """Time between two periodic triggers: never below the minimum pause. None: periodic is off."""
    if config.interval_ms is None:
        return None
    return max(config.interval_ms, config.min_pause_ms)


def first_due_ms(config: CheckpointConfig, *, delay_ms: int, now_ms: int) -> int | None:
    """The time of the first periodic trigger after the job started to run; None: never.

    Raises:
        ProtocolError: The delay does not lie between minimum pause and interval.
    """
    interval_ms = effective_interval_ms(config)
    if interval_ms is None:
        return None
    if not config.min_pause_ms <= delay_ms <= interval_ms:
        raise ProtocolError(
            f"the first checkpoint's delay is {delay_ms} ms; it must lie between the minimum pause "
            f"({config.min_pause_ms} ms) and the interval ({interval_ms} ms)"
        )
    return now_ms + delay_ms


def following_due_ms(due_ms: int, interval_ms: int, *, now_ms: int) -> int:
    """The next point after now on the grid of ``due_ms`` and interval; missed ones are skipped."""
    return due_ms + ((now_ms - due_ms) // interval_ms + 1) * interval_ms


def _rank(request: TriggerRequest, config: CheckpointConfig) -> tuple[bool, bool, bool, int]:
    """Smaller goes first; equals go in the order they came."""
    return (
        request.kind not in SAVEPOINT_KINDS,
        not is_forced(request, config),
        request.is_periodic,
        request.requested_at_ms,
    )
