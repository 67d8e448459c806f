"""The preview of a rollback in words, for the user who decides on it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from weir.protocol.elements import MAX_WATERMARK_MS

if TYPE_CHECKING:
    from weir.output.rollback import OutputMove, RollbackPreview, SourceMove

SPLITS_SAID_MAX = 3


def sentences(seen: "RollbackPreview") -> Iterator[str]:
    """A preview in words, the most important first."""
    yield _said_of_target(seen)
    for source in seen.sources:
        yield _said_of_source(source, seen)
    if not seen.sources:
        yield "which records are read again is not known: the checkpoints do not name the sources"
    yield from _said_of_event_time(seen)
    for output in seen.outputs:
        yield _said_of_output(output, seen)
    if seen.state_size_now is not None and seen.state_size_now != seen.state_size_then:
        yield f"state: {_size(seen.state_size_then)} instead of {_size(seen.state_size_now)}"
    yield from _said_of_branches(seen)


def _said_of_target(seen: "RollbackPreview") -> str:
    then, ago = f"checkpoint {seen.checkpoint_id}", _duration(seen.wall_time_lost_ms)
    if seen.checkpoint_id == seen.newest_id and not seen.is_forward:
        return f"the job goes on from its newest checkpoint, {seen.checkpoint_id}, taken {ago} ago"
    if seen.is_forward:
        return f"the job goes on from {then}, which is not on its line; taken {ago} ago"
    return f"the job goes back to {then}: {ago} of work are undone"


def _said_of_source(source: "SourceMove", seen: "RollbackPreview") -> str:
    then = f"checkpoint {seen.checkpoint_id}"
    least = "at least " if source.is_at_least else ""
    match source.records:
        case None:
            said = f"source {source.name}: how many records are read again is not known"
        case 0:
            said = f"source {source.name}: no record is read again"
            if source.is_at_least:
                said = f"source {source.name}: only records emitted since then are read again"
        case records if records > 0:
            are = "record is" if records == 1 else "records are"
            said = f"source {source.name}: {least}{records:,} {are} read again"
        case records:
            are = "record is" if records == -1 else "records are"
            said = f"source {source.name}: {-records:,} {are} skipped, since {then} has them"
    if source.split_count is None or not source.split_count:
        return said
    shown = [
        f"{_place(m.split)} from {_place(m.now)} to {_place(m.then)}"
        for m in source.splits[:SPLITS_SAID_MAX]
    ]
    rest = source.split_count - len(shown)
    return f"{said}; position of {'; of '.join(shown)}{f'; of {rest:,} more' if rest else ''}"


def _place(text: str) -> str:
    """A split or a position without the marks of JSON, where that loses nothing."""
    try:
        value = json.loads(text)
    except ValueError:
        return text  # Words: "its start", "done".
    if isinstance(value, bool) or value is None:
        return text
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and all(isinstance(part, str | int) for part in value.values()):
        return ", ".join(f"{name} {_place(json.dumps(part))}" for name, part in value.items())
    return text


def _said_of_event_time(seen: "RollbackPreview") -> Iterator[str]:
    now, then, lost = seen.watermark_now_ms, seen.watermark_then_ms, seen.event_time_lost_ms
    if now is None and then is None:
        return
    if then is None:
        yield f"event time: not known of checkpoint {seen.checkpoint_id}; now {_moment(now)}"
    elif now == then:
        yield f"event time stays at {_moment(then)}"
    elif lost is None:
        yield f"event time: {_moment(then)} instead of {_moment(now)}"
    elif lost > 0:
        yield f"event time goes back by {_duration(lost)}, to {_moment(then)}"
    else:
        yield f"event time goes forward by {_duration(-lost)}, to {_moment(then)}"


def _said_of_output(output: "OutputMove", seen: "RollbackPreview") -> str:
    where = f"output {output.directory}"
    if output.files_beside is None or output.files_withdrawn is None:
        return f"{where}: which files would move is not known: {output.problem}"
    parts = []
    beside = f"{_files(output.files_beside)} ({_size(output.bytes_beside or 0)})"
    back = f"{_files(output.files_withdrawn)} ({_size(output.bytes_withdrawn or 0)})"
    is_one, is_one_back = output.files_beside == 1, output.files_withdrawn == 1
    if seen.rewinds_output:
        if output.files_beside:
            parts.append(f"{beside} {'is' if is_one else 'are'} taken back")
        if output.files_withdrawn:
            parts.append(f"{back} {'comes' if is_one_back else 'come'} back")
    else:
        if output.files_beside:
            stay = "stays, and its rows come" if is_one else "stay, and their rows come"
            parts.append(f"{beside} {stay} a second time")
        if output.files_withdrawn:
            stay = (
                "stays taken back; its rows are"
                if is_one_back
                else "stay taken back; their rows are"
            )
            parts.append(f"{back} {stay} missing")
    return f"{where}: {'; '.join(parts) or 'no file moves'}"


def _said_of_branches(seen: "RollbackPreview") -> Iterator[str]:
    if seen.abandoned is None or seen.reclaimed is None:
        yield "which checkpoints are left behind is not known"
    if seen.abandoned:
        is_one = len(seen.abandoned) == 1
        yield (
            f"{_checkpoints(seen.abandoned)} {'is' if is_one else 'are'} kept for "
            f"{_duration(seen.abandoned_ttl_ms)}; until then the job can go on from "
            f"{'it' if is_one else 'them'} after all"
        )
    if seen.reclaimed:
        count = "counts" if len(seen.reclaimed) == 1 else "count"
        yield f"{_checkpoints(seen.reclaimed)} {count} again"
    if seen.unreadable:
        yield f"{_checkpoints(seen.unreadable)} cannot be read"


def _checkpoints(ids: tuple[int, ...]) -> str:
    if len(ids) == 1:
        return f"checkpoint {ids[0]}"
    if len(ids) == 2:
        return f"checkpoints {ids[0]} and {ids[1]}"
    gaps = ids[-1] - ids[0] + 1 != len(ids)
    return f"checkpoints {ids[0]} to {ids[-1]}{f' ({len(ids)} of them)' if gaps else ''}"


def _files(count: int) -> str:
    return f"{count:,} {'file' if count == 1 else 'files'}"


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1_000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


_UNITS = (("day", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def _duration(ms: int) -> str:
    """A duration in its two largest units that are not zero."""
    if ms < 1_000:
        return f"{ms} ms"
    left, parts = round(ms / 1_000), []
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count:,} {'days' if unit == 'day' and count > 1 else unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def _moment(ms: int | None) -> str:
    if ms is None:
        return "not known"
    if ms >= MAX_WATERMARK_MS:
        return "its end"
    try:
        at = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):  # Event times can be anything.
        return f"{ms} ms"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
