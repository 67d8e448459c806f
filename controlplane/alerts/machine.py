"""The decisions of alerts: when one fires and resolves, and when it is told. Pure.

A **watch** follows one rule about one job and subject. It is edge-triggered: an alert fires once
when the condition has held for the rule's *hold*, and resolves once when the condition has been
clear for the *settling* time. Times are arguments and all state is a ``Watch``, so evaluators that
are replaced in between change nothing.

::

                    holds                 for hold                clear for settling
    inactive ────────────────► pending ──────────────► firing ──────────────────────► resolved
        ▲                         │                      ▲                               │
        ├─────────── clear ───────┘                      └── held for hold, and the ─────┤
        │                                                    cooldown is over            │
        └──────────────── clear, and the cooldown and the memory of flaps are over ──────┘

**Flapping.** Each firing that follows the last resolution within ``FLAP_MEMORY`` doubles the
settling time: a condition that comes and goes becomes one long alert, not many short ones.

**Cooldown.** No alert fires within the cooldown after the last one resolved; a condition that still
holds then fires at once, if it has held for long enough.

**Clocks.** A stored time that lies ahead of the clock becomes the time now: a clock that is set
back makes a watch wait again, and neither fires nor resolves an alert.

**Telling.** An alert is told when it fires, unless it is silenced or acknowledged; it is told later
if it still fires when the silence ends. Its resolution is told if its firing was, silence or not:
receivers would keep it open. So notices count 1, 2.

Source: the states are those of Prometheus' alerting rules (``for``, ``keep_firing_for``).
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum


class Phase(StrEnum):
    """The phase of a watch."""

    INACTIVE = "inactive"  # It needs no row.
    PENDING = "pending"  # The condition holds, not for long enough yet.
    FIRING = "firing"
    RESOLVED = "resolved"  # In its cooldown, or its flaps are remembered.


TRANSITIONS: Mapping[Phase, Set[Phase]] = {
    Phase.INACTIVE: {Phase.PENDING, Phase.FIRING},
    Phase.PENDING: {Phase.INACTIVE, Phase.FIRING},
    Phase.FIRING: {Phase.RESOLVED},
    Phase.RESOLVED: {Phase.INACTIVE, Phase.FIRING},
}

SETTLING = timedelta(seconds=30)  # Of a condition that does not flap.
SETTLING_MAX = timedelta(hours=1)
FLAP_MEMORY = timedelta(hours=1)
_DOUBLINGS_MAX = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The times of a rule."""

    hold: timedelta = timedelta(0)  # The condition has to hold for so long.
    cooldown: timedelta = timedelta(0)  # No new alert within, after the last one resolved.
    settling: timedelta = SETTLING

    def settling_after(self, flaps: int) -> timedelta:
        """The time for which the condition has to be clear, after so many flaps."""
        return max(
            self.settling, min(self.settling * (1 << min(flaps, _DOUBLINGS_MAX)), SETTLING_MAX)
        )

    @property
    def memory(self) -> timedelta:
        """The time for which a resolution is remembered."""
        return max(self.cooldown, FLAP_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The state of one rule about one job and subject."""

    phase: Phase = Phase.INACTIVE
    held_since: datetime | None = None  # Begin of the condition, while it holds.
    clear_since: datetime | None = None  # While an alert fires: the condition is over since.
    resolved_at: datetime | None = None  # The last resolution, as long as it is remembered.
    flaps: int = 0  # Firings in a row, each soon after the resolution before.


class Edge(StrEnum):
    """A change of an alert."""

    FIRED = "fired"
    RESOLVED = "resolved"


IDLE = Watch()


def step(watch: Watch, holds: bool, now: datetime, policy: Policy) -> tuple[Watch, Edge | None]:
    """The watch after a look at its condition, and the change of its alert."""
    watch = _not_ahead(watch, now)
    match watch.phase:
        case Phase.FIRING:
            return _firing(watch, holds, now, policy)
        case Phase.RESOLVED:
            return _resolved(watch, holds, now, policy)
        case _:
            if not holds:
                return IDLE, None
            return _held(watch, now, policy, flaps=0)


def withdraw(watch: Watch) -> Edge | None:
    """The change of the alert when its rule, or the rule's word on the job, is withdrawn."""
    return Edge.RESOLVED if watch.phase is Phase.FIRING else None


def next_look(watch: Watch, holds: bool, policy: Policy) -> datetime | None:
    """The time at which the watch may change though its condition does not; None: it does not."""
    match watch.phase:
        case Phase.PENDING if watch.held_since is not None:
            return watch.held_since + policy.hold
        case Phase.FIRING if not holds and watch.clear_since is not None:
            return watch.clear_since + policy.settling_after(watch.flaps)
        case Phase.RESOLVED if watch.resolved_at is not None:
            if not holds or watch.held_since is None:
                return watch.resolved_at + policy.memory
            return max(watch.resolved_at + policy.cooldown, watch.held_since + policy.hold)
    return None


def notice_due(*, is_firing: bool, told: int, is_silenced: bool, is_acknowledged: bool) -> bool:
    """Whether the alert's next notice is due; ``told`` of them were posted."""
    if is_firing:
        return told == 0 and not is_silenced and not is_acknowledged
    return told == 1


def _held(watch: Watch, now: datetime, policy: Policy, flaps: int) -> tuple[Watch, Edge | None]:
    since = watch.held_since or now
    if now - since >= policy.hold:
        return Watch(phase=Phase.FIRING, held_since=since, flaps=flaps), Edge.FIRED
    return replace(watch, phase=Phase.PENDING, held_since=since), None


def _firing(watch: Watch, holds: bool, now: datetime, policy: Policy) -> tuple[Watch, Edge | None]:
    if holds:
        return replace(watch, clear_since=None), None
    since = watch.clear_since or now
    if now - since >= policy.settling_after(watch.flaps):
        ended = Watch(phase=Phase.RESOLVED, resolved_at=now, flaps=watch.flaps)
        return ended, Edge.RESOLVED
    return replace(watch, clear_since=since), None


def _resolved(
    watch: Watch, holds: bool, now: datetime, policy: Policy
) -> tuple[Watch, Edge | None]:
    passed = now - (watch.resolved_at or now)
    if not holds:
        return (IDLE if passed >= policy.memory else replace(watch, held_since=None)), None
    since = watch.held_since or now
    if passed >= policy.cooldown and now - since >= policy.hold:
        return _held(
            replace(watch, held_since=since),
            now,
            policy,
            flaps=watch.flaps + 1 if passed < FLAP_MEMORY else 0,
        )
    return replace(watch, held_since=since), None


def _not_ahead(watch: Watch, now: datetime) -> Watch:
    """The watch without times that lie ahead of the clock."""
    if all(
        at is None or at <= now for at in (watch.held_since, watch.clear_since, watch.resolved_at)
    ):
        return watch
    return replace(
        watch,
        held_since=watch.held_since and min(watch.held_since, now),
        clear_since=watch.clear_since and min(watch.clear_since, now),
        resolved_at=watch.resolved_at and min(watch.resolved_at, now),
    )
