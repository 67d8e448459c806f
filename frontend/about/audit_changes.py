"""The changes of an audit entry, value by value. Pure.

An entry keeps the values before and after as JSON. Here they become a list of the values that
differ, by their dotted names; a value that is the same on both sides is no change.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.redaction import shown

VALUE_CHARACTERS_MAX = 300
CHANGES_MAX = 60
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One value before and after; None on the side where it is missing."""

    name: str
    before: str | None
    after: str | None


def list_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Change]:
    """The changes in the order of the names, ``CHANGES_MAX`` at most; a value that is empty on both
    sides is left out.
    """
    # Secrets are hidden after the comparison, so that a changed password counts as a change.
    old, new = dict(_flat(before or {})), dict(_flat(after or {}))
    names = [*old, *(name for name in new if name not in old)]
    differing = [
        Change(name, _text(name, old.get(name, _ABSENT)), _text(name, new.get(name, _ABSENT)))
        for name in names
        if old.get(name, _ABSENT) != new.get(name, _ABSENT)
    ]
    told = [change for change in differing if change.before or change.after]
    return told[:CHANGES_MAX]


def _flat(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{within}.{key}" if within else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name)
        else:
            yield name, value


def _text(name: str, value: Any) -> str | None:
    if value is _ABSENT or value in (None, "", {}, []):
        return None
    seen = shown(name, value)
    text = seen if isinstance(seen, str) else json.dumps(seen, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 1] + "…"
