"""Rules as their pages show them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from controlplane.alerts.kinds import KINDS
from controlplane.alerts.kinds.base import Kind
from controlplane.alerts.models import Rule
from controlplane.base.formatting import duration, listed, size
from frontend.base import status

ENDPOINTS_NAMED = 3

# Parameters of rules in words; their units are those of the fields.
LABELS = {
    "seconds": "Limit, in seconds",
    "intervals": "Intervals of checkpoints",
    "count": "Number",
    "window_s": "Window, in seconds",
    "times_median": "Times the median",
    "least_s": "Least duration, in seconds",
    "share": "Share",
    "factor": "Factor",
    "least_bytes": "Least state, in bytes",
    "kinds": "Kinds of operations",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One rule."""

    id: UUID
    name: str
    description: str
    kind: str
    text: str  # The condition, in a sentence.
    parameters: list[tuple[str, str]]
    scope: str
    severity: str
    tone: str
    status: dict[str, str]
    problem: str
    times: str  # Hold and cooldown; empty: neither.
    endpoints: str
    is_enabled: bool
    is_builtin: bool
    is_stored: bool  # It can be tried on the past.


def row(rule: Rule) -> Row:
    """The rule of a row whose endpoints are fetched."""
    kind = KINDS[rule.kind]
    return Row(
        id=rule.pk,
        name=rule.name,
        description=rule.description,
        kind=kind.title,
        text=kind.text,
        parameters=_parameters(kind, rule.parameters),
        scope=_scope(rule),
        severity=rule.severity,
        tone=status.SEVERITY[rule.severity],
        status=status.of_rule(rule.state),
        problem=rule.problem if rule.is_enabled else "",
        times=_times(rule),
        endpoints=_endpoints(rule),
        is_enabled=rule.is_enabled,
        is_builtin=rule.is_builtin,
        is_stored=kind.is_stored,
    )


def _scope(rule: Rule) -> str:
    if rule.job:
        return f"job {rule.job}"
    return f"jobs named {rule.job_pattern}" if rule.job_pattern else "all jobs"


def _times(rule: Rule) -> str:
    parts = []
    if rule.hold_s:
        parts.append(f"held for {duration(rule.hold_s * 1_000)}")
    if rule.cooldown_s:
        parts.append(f"not again within {duration(rule.cooldown_s * 1_000)}")
    return ", ".join(parts)


def _endpoints(rule: Rule) -> str:
    if rule.to_all_endpoints:
        return "all endpoints"
    names = sorted(one.name for one in rule.endpoints.all() if one.deleted_at is None)
    return listed(names, ENDPOINTS_NAMED) if names else "no endpoint"


def _parameters(kind: Kind, parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The parameters with their units, as the kind orders them; 0 and nothing restrict nothing."""
    known = [name for name in kind.texts if name in parameters]
    rest = [name for name in parameters if name not in kind.texts]
    return [
        (LABELS.get(name, name).partition(",")[0], _value(name, parameters[name]))
        for name in known + rest
        if parameters[name] not in (0, [], "")
    ]


def _value(name: str, value: Any) -> str:
    is_number = isinstance(value, int | float)
    if is_number and (name == "seconds" or name.endswith("_s")):
        return duration(value * 1_000)
    if is_number and name.endswith("_bytes"):
        return size(value)
    if is_number and name == "share":
        return f"{value:.0%}"
    if is_number:
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
