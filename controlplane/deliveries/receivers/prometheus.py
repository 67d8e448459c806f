"""A notice as Prometheus and its Alertmanager name things: labels, annotations, a fingerprint."""

import hashlib
import re

from controlplane.deliveries.notice import Notice
from controlplane.deliveries.receivers.base import evidence_lines

_OTHER = re.compile(r"[^a-zA-Z0-9_]")


def labels(notice: Notice) -> dict[str, str]:
    """The labels of the alert, the same from its begin to its end: by them it is resolved.

    ``job`` and ``instance`` are the scrape's in Prometheus, so a job is ``weir_job``; labels of the
    notice are ``label_…``.
    """
    own = {
        "alertname": notice.rule,
        "severity": notice.severity,
        "weir_alert": notice.alert,
        "weir_job": notice.job or "",
        "weir_job_name": notice.job_name or "",
    }
    given = {f"label_{_OTHER.sub('_', name)}": value for name, value in notice.labels.items()}
    return {name: value for name, value in (given | own).items() if value}


def annotations(notice: Notice) -> dict[str, str]:
    """The texts of the alert."""
    texts = {"summary": notice.summary, "description": "\n".join(evidence_lines(notice))}
    return {name: text for name, text in texts.items() if text}


def fingerprint(labels: dict[str, str]) -> str:
    """A short name of a set of labels."""
    words = "\0".join(f"{name}\0{value}" for name, value in sorted(labels.items()))
    return hashlib.sha256(words.encode()).hexdigest()[:16]
