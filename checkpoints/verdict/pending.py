"""What a checkpoint that is under way waits for, and whether it is late. Pure."""

from dataclasses import replace

from checkpoints.verdict.facts import Facts, Times
from checkpoints.verdict.result import Finding, Verdict
from checkpoints.verdict.waiting import waiting
from checkpoints.verdict.wording import Tense
from controlplane.base.formatting import duration, interval, number, plural, rough_duration
from weir.protocol.lifecycle import CheckpointStatus

# Late is who takes three times as long as those before it usually did, as for those that completed;
LATE_FACTOR = 3.0
LATE_FLOOR_MS = 2_000.0  # but nobody is paged for two seconds.
LATE_WITHOUT_OTHERS_MS = 30_000.0  # The first one of a job is measured by patience.

# A stall is reported every second while it lasts; a few seconds later it is over.
STALL_OVER_MS = 5_000.0


def judge(facts: Facts) -> Verdict:
    """The verdict on a checkpoint that has not settled."""
    times = facts.times
    is_late = _is_late(times)
    so_far = f"under way for {rough_duration(times.elapsed_ms)}"
    if times.typical_ms is not None:
        so_far += f", usually {duration(times.typical_ms)}"
    counted = (
        f"{number(times.acknowledged_count)} of {plural(times.subtask_count, 'operator subtask')} "
        "have acknowledged."
    )
    numbers = [counted, *_compared(times), *_limits(times)]
    if times.status is CheckpointStatus.FINALIZING:
        return _finalizing(times, so_far, numbers, is_late)
    found = waiting(_without_past_stalls(facts), Tense.PRESENT)
    if found is None:
        return Verdict("warn" if is_late else "busy", f"{_progress(times)}.", because=numbers)
    if is_late or found.stack:
        late = f"{so_far[:1].upper()}{so_far[1:]}"
        # The headline says already what is usual.
        return found.verdict("warn", f"{late}, because {found.clause}.", [counted, *_limits(times)])
    found.advice = []  # It is too early for any.
    return found.verdict("busy", f"{_progress(times)}; it waits for {_who(found)}.", numbers)


def _without_past_stalls(facts: Facts) -> Facts:
    """The same without calls that have returned since: nobody is stuck in those now."""
    evidence, now_ms = facts.evidence, facts.times.now_ms
    last = {
        key: stall
        for key, stall in evidence.stalls.items()
        if now_ms - stall.since_ms - stall.stalled_ms < STALL_OVER_MS
    }
    return replace(facts, evidence=replace(evidence, stalls=last))


def _who(found: Finding) -> str:
    return " and ".join(dict.fromkeys(found.culprits)) or "its subtasks"


def _progress(times: Times) -> str:
    return (
        f"Under way: {number(times.acknowledged_count)} of "
        f"{plural(times.subtask_count, 'operator subtask')} have acknowledged"
    )


def _is_late(times: Times) -> bool:
    took = times.elapsed_ms
    if times.typical_ms is not None:
        return took >= max(LATE_FLOOR_MS, LATE_FACTOR * times.typical_ms)
    return took >= max(LATE_WITHOUT_OTHERS_MS, float(times.interval_ms or 0))


def _compared(times: Times) -> list[str]:
    if times.typical_ms is None:
        return []
    return [f"Half of those before it took {duration(times.typical_ms)} or less."]


def _limits(times: Times) -> list[str]:
    if times.timeout_ms is None:
        return []
    return [f"It is given up {interval(times.timeout_ms)} after its trigger."]


def _finalizing(times: Times, so_far: str, numbers: list[str], is_late: bool) -> Verdict:
    text = "Everybody has acknowledged; its manifest is being written"
    if not is_late:
        return Verdict("busy", f"{text}.", because=numbers)
    return Verdict(
        "warn",
        f"{text}, {so_far}" + (f": {times.cause}" if times.cause else "."),
        because=numbers,
        advice=(
            "The driver writes the manifest to the checkpoint storage: look at the storage, at the "
            "driver's log, and whether the control plane hears of the driver.",
        ),
    )
