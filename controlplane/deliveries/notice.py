"""A notice: one alert began, goes on, ended, or is a test. Pure.

A notice is stored as JSON with each of its deliveries, bounded and with text that the database can
store: job names and causes come from user code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

Status = Literal["firing", "resolved", "test"]
Severity = Literal["info", "warning", "critical"]
STATUSES: tuple[Status, ...] = get_args(Status)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

ID_LENGTH_MAX = 64
NAME_LENGTH_MAX = 200
SUMMARY_LENGTH_MAX = 500
EVIDENCE_MAX, EVIDENCE_NAME_MAX, EVIDENCE_VALUE_MAX = 12, 80, 300
LABELS_MAX, LABEL_NAME_MAX, LABEL_VALUE_MAX = 20, 60, 120
LINKS_MAX, LINK_TEXT_MAX, URL_LENGTH_MAX = 5, 80, 500

_CUT = "…"


@dataclass(frozen=True, slots=True)
class Notice:
    """An alert's change, in the words and numbers of its rule's verdict."""

    alert: str  # The alert's id: the receiver's key for grouping and deduplication.
    sequence: int  # 1, 2, … per alert.
    status: Status
    severity: Severity
    rule: str  # The rule's name.
    summary: str  # One sentence.
    evidence: tuple[tuple[str, str], ...]
    labels: Mapping[str, str]
    links: tuple[tuple[str, str], ...]  # Text and absolute URL.
    job: str | None
    job_name: str | None
    began_at: datetime
    ended_at: datetime | None

    @property
    def at(self) -> datetime:
        """The time of the change: the alert's end once it is resolved, else its begin."""
        return self.ended_at if self.status == "resolved" and self.ended_at else self.began_at

    @property
    def title(self) -> str:
        """Severity, rule and job in a few words, for subjects and headings."""
        state = {"firing": self.severity, "resolved": "resolved", "test": "test"}[self.status]
        return f"{state}: {self.rule}" + (f" – {self.job_name}" if self.job_name else "")

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made

    @classmethod
    def from_json(cls, data: Any) -> "Notice":
        """The notice of a stored form.

        Raises:
            msgspec.ValidationError: The data is no notice.
        """
        return msgspec.convert(data, cls)


def bounded(notice: Notice) -> Notice:
    """The notice with each text storable and cut to its bound; links that are no URLs are left out.

    Raises:
        ValueError: The id is empty or too long, the sequence is below 1, or a time has no zone.
    """
    if not 0 < len(notice.alert) <= ID_LENGTH_MAX or plain(notice.alert) != notice.alert:
        raise ValueError(f"an alert's id has 1 to {ID_LENGTH_MAX} characters")
    if notice.sequence < 1:
        raise ValueError("the first notice of an alert has the sequence 1")
    if any(at is not None and at.tzinfo is None for at in (notice.began_at, notice.ended_at)):
        raise ValueError("times of a notice have a time zone")
    if notice.status not in STATUSES or notice.severity not in SEVERITIES:
        raise ValueError(f"no notice is {notice.status} and {notice.severity}")
    return replace(
        notice,
        rule=cut(notice.rule, NAME_LENGTH_MAX),
        summary=cut(notice.summary, SUMMARY_LENGTH_MAX),
        evidence=_pairs(notice.evidence, EVIDENCE_MAX, EVIDENCE_NAME_MAX, EVIDENCE_VALUE_MAX),
        labels=dict(_pairs(notice.labels.items(), LABELS_MAX, LABEL_NAME_MAX, LABEL_VALUE_MAX)),
        links=tuple(
            (cut(text, LINK_TEXT_MAX), url)
            for text, url in list(notice.links)[:LINKS_MAX]
            if _is_link(url)
        ),
        job=None if notice.job is None else cut(notice.job, NAME_LENGTH_MAX),
        job_name=None if notice.job_name is None else cut(notice.job_name, NAME_LENGTH_MAX),
    )


def plain(text: str) -> str:
    """The text without NUL and lone surrogates, which PostgreSQL cannot store."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def cut(text: str, length_max: int) -> str:
    """The storable text, with an ellipsis where it is cut."""
    text = plain(text)
    return text if len(text) <= length_max else text[: length_max - len(_CUT)] + _CUT


def _pairs(
    pairs: Iterable[tuple[str, str]], count_max: int, name_max: int, value_max: int
) -> tuple[tuple[str, str], ...]:
    kept = list(pairs)[:count_max]
    return tuple((cut(name, name_max), cut(value, value_max)) for name, value in kept)


def _is_link(url: str) -> bool:
    is_web = url.startswith(("http://", "https://"))
    return is_web and len(url) <= URL_LENGTH_MAX and url.isprintable() and " " not in url
