"""The rule for labels: texts by name, by which jobs and savepoints are searched."""

from collections.abc import Mapping
from typing import Any

from controlplane.base.errors import Problems

LABELS_MAX = 32
LABEL_LENGTH_MAX = 200


def check_labels(labels: Mapping[str, str], problems: Problems) -> None:
    """Note a problem of the field ``labels``."""
    if not _are_labels(labels):
        problems.add(
            "labels",
            f"Give at most {LABELS_MAX} labels; names and values are printable texts of at most "
            f"{LABEL_LENGTH_MAX} characters.",
        )


def _are_labels(labels: Any) -> bool:
    return (
        isinstance(labels, Mapping)
        and len(labels) <= LABELS_MAX
        and all(
            type(text) is str and len(text) <= LABEL_LENGTH_MAX and text.isprintable()
            for pair in labels.items()
            for text in pair
        )
        and "" not in labels
    )
