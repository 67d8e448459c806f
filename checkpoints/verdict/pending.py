"""The verdict on a checkpoint under way: what it waits for, and whether it is late. Pure."""

from dataclasses import replace

from checkpoints.verdict.facts import Facts, Times
from checkpoints.verdict.result import Cause, Finding, Verdict
from checkpoints.verdict.waiting import waiting
from checkpoints.verdict.wording import Tense, of_silent_driver
from controlplane.base.formatting import duration, interval, number, plural, rough_duration
from weir.protocol.lifecycle import CheckpointStatus

# Late: three times the median of the completed ones before it, the factor for completed ones too;
LATE_FACTOR = 3.0
LATE_FLOOR_MS = 2_000.0  # but no operator is paged for two seconds.
LATE_WITHOUT_OTHERS_MS = 30_000.0  # For the first one of a job, which has none to compare with.

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
    if times.driver_silent_ms is not None:
        silent = of_silent_driver(times.driver_silent_ms)
        return silent.verdict("warn", f"{_capital(so_far)}, because {silent.clause}.", numbers)
    if times.status is CheckpointStatus.FINALIZING:
        return _finalizing(times, so_far, numbers, is_late)
    finding = waiting(_without_past_stalls(facts), Tense.PRESENT)
    if finding is None:
        return Verdict("warn" if is_late else "busy", f"{_progress(times)}.", because=numbers)
    if is_late or finding.stack:
        # The headline states the usual duration already.
        return finding.verdict(
            "warn", f"{_capital(so_far)}, because {finding.clause}.", [counted, *_limits(times)]
        )
    finding.advice = []  # It is too early for any.
    return finding.verdict("busy", f"{_progress(times)}; waiting for {_who(finding)}.", numbers)


def _without_past_stalls(facts: Facts) -> Facts:
    """The facts without calls that have returned since: no subtask is stuck in those now."""
    evidence, now_ms = facts.evidence, facts.times.now_ms
    last = {
        key: stall
        for key, stall in evidence.stalls.items()
        if now_ms - stall.since_ms - stall.stalled_ms < STALL_OVER_MS
    }
    return replace(facts, evidence=replace(evidence, stalls=last))


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _who(finding: Finding) -> str:
    return " and ".join(dict.fromkeys(finding.culprits)) or "its subtasks"


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
    return [
        f"Half of the completed checkpoints before it took {duration(times.typical_ms)} or less."
    ]


def _limits(times: Times) -> list[str]:
    if times.timeout_ms is None:
        return []
    return [f"The {times.noun} times out {interval(times.timeout_ms)} after its trigger."]


def _finalizing(times: Times, so_far: str, numbers: list[str], is_late: bool) -> Verdict:
    text = "All subtasks have acknowledged; the manifest is being written"
    if times.lost_driver:
        first = times.lost_driver.strip().partition("\n")[0].rstrip(".")
        if times.cause:
            lost = f"The driver was lost while it wrote the manifest: {first}."
            return Verdict(
                "bad",
                f"{times.cause.rstrip('.')}.",
                because=[lost, *numbers],
                advice=(
                    "The next driver is launched once the storage has told whether the manifest "
                    "was written: look at the storage as the control plane's workers see it.",
                ),
                cause=Cause.STORAGE,
            )
        return Verdict(
            "warn",
            f"All subtasks have acknowledged; the driver was lost while it wrote the manifest: "
            f"{first}.",
            because=numbers,
            advice=(
                "Look at why the driver was lost, in the job's exceptions and the driver's log. "
                "The next driver finds out whether the manifest was written.",
            ),
            culprits=("driver",),
            cause=Cause.DRIVER,
        )
    if not is_late:
        return Verdict("busy", f"{text}.", because=numbers)
    return Verdict(
        "warn",
        f"{text}, {so_far}" + (f": {times.cause}" if times.cause else "."),
        because=numbers,
        advice=(
            "The driver writes the manifest to the checkpoint storage: look at the storage and at "
            "the driver's log, and check whether the control plane hears from the driver.",
        ),
    )
