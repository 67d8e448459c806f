"""Marks above a job's history: takeovers, exceptions, alerts. Pure, but rows are Django's."""

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any

from django.urls import reverse

from controlplane.alerts.models import Alert
from controlplane.base.formatting import duration, iso, milliseconds_between
from frontend.base.texts import headline
from frontend.job.history import EXCEPTION_KINDS, DownTime
from jobs.models import Attempt, JobException

Figure = dict[str, Any]

HOVER_CHARACTERS_MAX = 120


def plain(text: str) -> str:
    """Foreign text, escaped: Plotly would take tags in it for formatting."""
    return escape(text, quote=False)


def mark_takeovers(downs: Sequence[DownTime], now: datetime) -> list[Figure]:
    """One mark per recovery and per planned restart, in the middle of the shaded time."""
    traces = (
        ("Recovery", "var(--warn)", [down for down in downs if not down.is_planned]),
        ("Planned restart", "var(--quiet)", [down for down in downs if down.is_planned]),
    )
    return [_marks(name, color, its, now) for name, color, its in traces if its]


def _marks(name: str, color: str, downs: Sequence[DownTime], now: datetime) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [iso(down.since + ((down.until or now) - down.since) / 2) for down in downs],
        "y": [0] * len(downs),
        "yaxis": "y3",
        "customdata": [
            [
                "none yet" if down.attempt is None else f"{down.attempt.number:,}",
                iso(down.since),
                duration(milliseconds_between(down.since, down.until or now))
                + ("" if down.until else " so far"),
                _hover(down.cause) or "cause unknown",
                _restored(down.attempt),
            ]
            for down in downs
        ],
        "hovertemplate": f"{name.lower()}, attempt %{{customdata[0]}}, %{{customdata[1]}}<br>"
        "down for %{customdata[2]}%{customdata[4]}<br>%{customdata[3]}<extra></extra>",
        "marker": {"color": color, "symbol": "triangle-up", "size": 11},
    }


def _restored(attempt: Attempt | None) -> str:
    if attempt is None:
        return ""
    if attempt.restored_checkpoint is None:
        return ", restored the beginning"
    return f", restored checkpoint {attempt.restored_checkpoint:,}"


def mark_exceptions(rows: Sequence[JobException]) -> Figure:
    """One mark per exception."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "Exception",
        "x": [iso(row.at) for row in rows],
        "y": [1] * len(rows),
        "yaxis": "y3",
        "customdata": [
            [iso(row.at), plain(EXCEPTION_KINDS.get(row.kind, row.kind)), _hover(row.text)]
            for row in rows
        ],
        "hovertemplate": "%{customdata[1]}, %{customdata[0]}<br>%{customdata[2]}<extra></extra>",
        "marker": {"color": "var(--bad)", "symbol": "diamond", "size": 9},
    }


def mark_alerts(rows: Sequence[Alert]) -> Figure:
    """One mark per alert where its condition began; it leads to the alert's page."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "Alert",
        "x": [iso(row.began_at) for row in rows],
        "y": [2] * len(rows),
        "yaxis": "y3",
        "customdata": [
            [
                iso(row.began_at),
                plain(row.rule_name),
                _hover(row.summary),
                "firing" if row.is_firing else f"resolved {iso(row.ended_at)}",
                reverse("alert-page", args=[row.pk]),
            ]
            for row in rows
        ],
        "hovertemplate": "%{customdata[1]}, %{customdata[0]}, %{customdata[3]}<br>"
        "%{customdata[2]}<extra></extra>",
        "marker": {
            "color": [
                "var(--bad)" if row.severity == "critical" else "var(--warn)" for row in rows
            ],
            "symbol": ["star" if row.is_firing else "star-open" for row in rows],
            "size": 11,
        },
    }


def _hover(text: str) -> str:
    line = headline(text)
    if len(line) > HOVER_CHARACTERS_MAX:
        line = f"{line[: HOVER_CHARACTERS_MAX - 1]}…"
    return plain(line)
