"""A subtask's rates per second and shares of time, from the counters that it reports.

Counters only grow within an attempt. The newest sample and one of about two seconds ago make the
rates; the samples between are kept so that the window can move on. Time is the subtask's own, the
growth of busy, idle and back-pressured together: delayed reports, or several in one batch, change
nothing. A step that lasts longer than the window widens it: its time is known only at its end.

The wait for a processor is part of that time, wherever it came, and no fourth part beside them: a
subtask may be busy for all of its time and have waited for a processor for half of it. It is the
loop's, so the subtasks of a slot share it. The pressure is the host's, the time in which any of its
threads waited so.

Source: Flink's busyTimeMsPerSecond, idleTimeMsPerSecond and backPressuredTimeMsPerSecond, here as
shares of the time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

WINDOW_MS = 2_000.0
# Subtasks that work report every half second (those of large slots more rarely), so five samples
# make a window; so many are kept.
SAMPLES_MAX = 16

Counters: TypeAlias = Mapping[str, Any]  # Fields of weir.protocol.messages.SubtaskMetrics.

_COUNTED = ("records_in", "records_out", "bytes_in", "bytes_out")
_TIMES = ("busy_ms", "idle_ms", "back_pressured_ms")
_WAITS = ("cpu_wait_ms", "cpu_pressure_ms")


def sample(counters: Counters) -> dict[str, float]:
    """The counters of a subtask that its rates need."""
    return {name: counters[name] for name in (*_COUNTED, *_TIMES, *_WAITS)}


def slid(samples: Sequence[Counters], newest: Counters) -> list[Counters]:
    """The samples of the window that ends with ``newest``, oldest first.

    The first is the newest sample that is a whole window old, if there is one. Counters that went
    down are those of another attempt: the window begins anew.
    """
    if samples and any(newest[name] < samples[-1][name] for name in _COUNTED):
        return [newest]
    if samples and _clock_ms(newest) < _clock_ms(samples[-1]):
        return [newest]
    kept = [*samples, newest][-SAMPLES_MAX:]
    while len(kept) > 2 and _clock_ms(newest) - _clock_ms(kept[1]) >= WINDOW_MS:
        del kept[0]
    return kept


def over(samples: Sequence[Counters]) -> dict[str, float]:
    """Rates and shares over a window; empty while there is no time between two samples.

    Shape: ``window_ms``; ``records_in_per_s``, ``records_out_per_s``, ``bytes_in_per_s``,
    ``bytes_out_per_s``; ``busy``, ``idle``, ``back_pressured``, ``cpu_wait``, ``cpu_pressure``
    between 0 and 1.
    """
    if len(samples) < 2:
        return {}
    first, last = samples[0], samples[-1]
    window_ms = _clock_ms(last) - _clock_ms(first)
    if window_ms <= 0:
        return {}
    rates = {"window_ms": window_ms}
    for name in _COUNTED:
        rates[f"{name}_per_s"] = (last[name] - first[name]) * 1_000 / window_ms
    for name in (*_TIMES, *_WAITS):
        # Samples that an earlier version stored have no wait: it counts from those on that do.
        share = (last[name] - first.get(name, last[name])) / window_ms
        rates[name.removesuffix("_ms")] = min(1.0, max(0.0, share))
    return rates


def _clock_ms(counters: Counters) -> float:
    """The subtask's running time, by its own clock."""
    return float(sum(counters[name] for name in _TIMES))
