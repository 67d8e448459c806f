"""The rules that Weir comes with. Admins change, disable and delete them; they do not come back.

Migrations store them once: one has those that were there at first, and each that brings a kind of
rule has the rule of that kind. Until an endpoint exists, their alerts are only listed.
"""

from collections.abc import Collection
from typing import Any

from controlplane.base import clock

_MINUTE, _HOUR = 60, 3_600

DEFAULT_RULES: tuple[dict[str, Any], ...] = (
    {
        "name": "Job failed",
        "kind": "job_failed",
        "severity": "critical",
        "parameters": {"window_s": 24 * _HOUR},
    },
    {
        "name": "Restarts again and again",
        "kind": "restarts",
        "severity": "critical",
        "parameters": {"count": 3, "window_s": 10 * _MINUTE},
    },
    {
        "name": "No checkpoint completes",
        "kind": "checkpoint_age",
        "severity": "critical",
        "parameters": {"seconds": 300.0, "intervals": 5.0},
    },
    {
        "name": "Checkpoints fail",
        "kind": "checkpoint_failures",
        "severity": "warning",
        "parameters": {"count": 3, "window_s": _HOUR},
    },
    {
        "name": "Slow checkpoints",
        "kind": "checkpoint_duration",
        "severity": "warning",
        "parameters": {"seconds": 0.0, "times_median": 5.0, "least_s": 10.0},
        "cooldown_s": 10 * _MINUTE,
    },
    {
        "name": "Long alignment",
        "kind": "checkpoint_alignment",
        "severity": "info",
        "parameters": {"share": 0.5, "times_median": 0.0, "least_s": 10.0},
        "cooldown_s": 10 * _MINUTE,
    },
    {
        "name": "Slow recovery",
        "kind": "recovery_time",
        "severity": "warning",
        "parameters": {"seconds": 120.0, "window_s": 10 * _MINUTE},
    },
    {
        "name": "Operation failed",
        "kind": "operation_failed",
        "severity": "warning",
        "parameters": {"kinds": [], "window_s": _HOUR},
    },
    {
        "name": "Driver without heartbeat",
        "kind": "driver_silent",
        "severity": "critical",
        "parameters": {"seconds": 60.0},
    },
    {
        "name": "Subtask without report",
        "kind": "subtask_silent",
        "severity": "warning",
        "parameters": {"seconds": 60.0},
    },
    {
        "name": "Bad records",
        "kind": "bad_records",
        "severity": "warning",
        "parameters": {"count": 0, "window_s": 10 * _MINUTE},
    },
    {
        "name": "Slot short of memory",
        "kind": "slot_memory",
        "severity": "warning",
        "parameters": {"share": 0.9},
        "hold_s": _MINUTE,
    },
    # Usual in a replay of history, so an admin enables them where they say something.
    {
        "name": "Back pressure",
        "kind": "back_pressure",
        "severity": "info",
        "parameters": {"share": 0.8},
        "hold_s": 5 * _MINUTE,
        "is_enabled": False,
    },
    {
        "name": "Host short of processors",
        "kind": "host_starved",
        "severity": "warning",
        "parameters": {"share": 0.3},
        "hold_s": 5 * _MINUTE,
        "is_enabled": False,
    },
    {
        "name": "Event time behind",
        "kind": "event_time_lag",
        "severity": "warning",
        "parameters": {"seconds": 600.0},
        "hold_s": _MINUTE,
        "is_enabled": False,
    },
    {
        "name": "Growing state",
        "kind": "state_growth",
        "severity": "info",
        "parameters": {"factor": 2.0, "window_s": 24 * _HOUR, "least_bytes": 1 << 30},
        "is_enabled": False,
    },
)


def install(rules: Any, kinds: Collection[str] | None = None) -> None:
    """Store the rules by the manager given, of a migration or of now; names in use are left out.

    Args:
        kinds: Only these. Without any, all that the model has: that of a migration has those of its
            time.
    """
    now = clock.now()
    if kinds is None:
        kinds = [kind for kind, _ in rules.model._meta.get_field("kind").choices]
    rules.bulk_create(
        (
            rules.model(
                created_at=now,
                changed_at=now,
                created_by_name="control plane",
                is_builtin=True,
                **given,
            )
            for given in DEFAULT_RULES
            if given["kind"] in kinds
        ),
        ignore_conflicts=True,
    )
