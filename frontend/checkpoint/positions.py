"""Positions of sources in plain words. Pure.

A source keeps its unfinished splits with the position of the next record of each, as JSON of its
own format. Those of Weir's own sources are put into words; for others the JSON is shown.
"""

import json
from collections.abc import Mapping
from typing import Any

TEXT_MAX = 160  # Characters of a split or position in an unknown format.


def split_words(split: Any) -> str:
    """A split in words: a file's row groups, a range of numbers."""
    match split:
        case {"path": str(path), "row_groups": [int(first), *rest]}:
            groups = [first, *(group for group in rest if isinstance(group, int))]
            if len(groups) == 1:
                return f"{path}, row group {first:,}"
            return f"{path}, {len(groups):,} row groups"
        case {"next": int(first), "end": int(end)}:
            return f"numbers {first:,} to {end - 1:,}"
        case {"first": int(first), "stride": int(stride), "count": int() | None as count}:
            until = "without end" if count is None else f"of {count:,}"
            if stride == 1:
                return f"generated records {until}"
            return f"generated records {until}: every {stride:,}th from {first:,} on"
        case {"rows": int(rows)}:
            return f"a collection of {rows:,} records"
    return _json(split)


def position_words(split: Any, position: Any) -> str:
    """The position at which a restored subtask resumes a split: its next record."""
    if position is None:
        return "not begun"
    match split, position:
        case {"path": str(), "row_groups": list()}, [int(group), int(row)]:
            return f"next is row {row:,} of row group {group:,}"
        case {"next": int(first), "end": int(end)}, int(at):
            return f"next is {at:,}{_share(at - first, end - first)}"
        case {"first": int(first), "stride": int(), "count": int() | None as count}, int(at):
            share = "" if count is None else _share(at - first, count - first)
            return f"next is record {at:,}{share}"
        case {"rows": int(rows)}, int(at):
            return f"next is record {at:,}{_share(at, rows)}"
    return f"next is at {_json(position)}"


def is_begun(item: Mapping[str, Any]) -> bool:
    """Whether records of a split have been read."""
    return item.get("position") is not None


def _share(done: int, whole: int) -> str:
    return f" ({done / whole:.0%} read)" if 0 <= done <= whole and whole > 0 else ""


def _json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
