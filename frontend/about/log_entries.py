"""Lines of a log as entries: time, level, message, and the rest of the line. Pure.

A driver's log has lines of several writers: Weir's driver writes JSON objects, or plain lines on a
terminal; Spark writes log4j's lines; a pipeline prints any text. A line in a known format is an
entry, and takes the lines behind it that belong to it, such as a traceback. Any other line is an
entry as it is; a traceback without a line of its own is one entry.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from frontend.about.log_tail import Line

TEXT_CHARACTERS_MAX = 4_000  # The rest of a longer text is in the download only.
MORE_CHARACTERS_MAX = 16_000
FIELDS_MAX = 40

LEVELS = ("debug", "info", "warning", "error")  # In the order of their weight.
_LEVEL = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
    "critical": "error",
}
_TONE = {"warning": "warn", "error": "bad"}

_WORDS = "TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL"
# Spark's pattern, %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m, in the zone of its machine.
_SPARK = re.compile(rf"(\d\d)/(\d\d)/(\d\d) ([\d:]{{8}}) ({_WORDS}) ([^\s:]+): (.*)", re.DOTALL)
_PLAIN = re.compile(
    rf"(\d{{4}}-\d\d-\d\d)[ T]([\d:]{{8}}[.,]\d{{3}}) ({_WORDS}) (?:(\S+/\d+) )?([^\s:]+): (.*)",
    re.DOTALL,
)

_BAD = re.compile(r"\b(ERROR|FATAL|CRITICAL)\b|^Traceback \(|^\w+(\.\w+)*(Error|Exception)\b")
_WARN = re.compile(r"\bWARN(ING)?\b")
_TRACEBACK = "Traceback ("
_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")
_ERROR = re.compile(r"[A-Za-z_$][\w.$]*(: |\Z)")  # The last line of a traceback.
_CHAINED = re.compile(
    r"Caused by: |Suppressed: |During handling of the above |The above exception was "
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. Units: bytes from the log's beginning."""

    text: str  # The message; of a line in no known format, the line as it is.
    offset: int
    end: int
    level: str = ""  # One of LEVELS; empty: none is known.
    level_text: str = ""  # As the line has it; empty: the line is in no known format.
    at: datetime | None = None  # None: unknown, or without a zone.
    clock: str = ""  # The time as the page shows it.
    fields: tuple[tuple[str, str], ...] = ()  # Logger, thread and all else that the line has.
    more: str = ""  # A traceback, and other lines that belong to it.
    is_rest: bool = False  # Its beginning lies before the part of the log that was read.

    @property
    def tone(self) -> str:
        """``bad``, ``warn``, or nothing."""
        return _TONE.get(self.level, "")

    def shown(self) -> "Entry":
        """The entry with texts of a length that a page can show."""
        fields = tuple((name, cut(value)) for name, value in self.fields[:FIELDS_MAX])
        more = cut(self.more, MORE_CHARACTERS_MAX)
        return replace(self, text=cut(self.text), fields=fields, more=more)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter: at least a level, and words in message, fields or traceback, in any case."""

    words: str = ""
    level: str = ""  # One of LEVELS, or empty for all entries.

    def __bool__(self) -> bool:
        return bool(self.words or self.level)

    def matches(self, entry: Entry) -> bool:
        """Whether the filter lets an entry through."""
        if self.level and (not entry.level or LEVELS.index(entry.level) < LEVELS.index(self.level)):
            return False
        words = self.words.casefold()
        texts = (entry.text, entry.more, *(value for _, value in entry.fields))
        return not words or any(words in text.casefold() for text in texts)


def cut(text: str, most: int = TEXT_CHARACTERS_MAX) -> str:
    """The text; of a longer one, its beginning and how much is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters in the download)"


def list_whole_entries(lines: Sequence[Line]) -> list[Entry]:
    """The entries that begin in these lines, which have others before them.

    Lines at the beginning that may belong to an entry before them are left out, unless there are no
    others.
    """
    names_error = len(lines) > 1 and _ERROR.match(lines[0].text) and parsed(lines[0]) is None
    entries = list_entries(lines[1:] if names_error else lines, is_beginning=False)
    return entries[1:] if len(entries) > 1 and entries[0].is_rest else entries


def list_entries(lines: Sequence[Line], *, is_beginning: bool) -> list[Entry]:
    """The entries of consecutive lines.

    Args:
        is_beginning: No line lies before these; else the first ones may belong to an entry that
            began before them, and are then one entry with ``is_rest``.
    """
    return list(_grouped(lines, is_beginning))


def _grouped(lines: Sequence[Line], is_beginning: bool) -> Iterator[Entry]:
    at = 0
    if not is_beginning and lines and _may_be_rest(lines[0].text):
        at = _end_of_rest(lines, 1, takes_indented=True, is_traceback=True)
        yield replace(_as_it_is(lines[:at]), is_rest=True)
    while at < len(lines):
        line = lines[at]
        entry = parsed(line)
        is_traceback = line.text.startswith(_TRACEBACK)
        end = _end_of_rest(lines, at + 1, entry is not None or is_traceback, is_traceback)
        if entry is None:
            yield _as_it_is(lines[at:end])
        elif end == at + 1:
            yield entry
        else:
            rest = "\n".join(line.text for line in lines[at + 1 : end])
            more = f"{entry.more}\n{rest}" if entry.more else rest
            yield replace(entry, more=more, end=lines[end - 1].end)
        at = end


def _may_be_rest(text: str) -> bool:
    return not text or text.startswith(_TRACEBACK) or _is_rest(text)


def _is_rest(text: str) -> bool:
    return text[:1].isspace() or _CHAINED.match(text) is not None


def _end_of_rest(lines: Sequence[Line], at: int, takes_indented: bool, is_traceback: bool) -> int:
    """The first line from ``at`` on that does not belong to the entry that began before it."""
    while at < len(lines):
        text = lines[at].text
        if _FRAME.match(text):  # A stack of the JVM belongs to any line.
            takes_indented, is_traceback = True, False
        elif not takes_indented:
            return at
        elif not text.strip():  # Between the parts of a chained traceback.
            following = lines[at + 1].text if at + 1 < len(lines) else ""
            if not (_CHAINED.match(following) or following.startswith(_TRACEBACK)):
                return at
        elif text.startswith(_TRACEBACK):
            is_traceback = True
        elif _is_rest(text):
            pass
        elif _ERROR.match(text) and (is_traceback or _begins_stack(lines, at)):
            is_traceback = False  # Its last line.
        else:
            return at
        at += 1
    return at


def _begins_stack(lines: Sequence[Line], at: int) -> bool:
    """Whether a stack of the JVM follows the line, which then names its error."""
    return at + 1 < len(lines) and _FRAME.match(lines[at + 1].text) is not None


def _as_it_is(lines: Sequence[Line]) -> Entry:
    text = "\n".join(line.text for line in lines)
    first = lines[0].text
    level = "error" if _BAD.search(first) else "warning" if _WARN.search(first) else ""
    return Entry(text, lines[0].offset, lines[-1].end, level)


def parsed(line: Line) -> Entry | None:
    """The entry of a line in a known format; None for any other line."""
    text = line.text
    if text.startswith("{"):
        return _of_json(line)
    if match := _SPARK.fullmatch(text):
        year, month, day, clock, level, logger, message = match.groups()
        when = f"20{year}-{month}-{day} {clock}"
        return _of_text(line, message, level, when, ("logger", logger))
    if match := _PLAIN.fullmatch(text):
        day, clock, level, about, logger, message = match.groups()
        when = f"{day} {clock.replace(',', '.')}"
        drivers = [("driver", about)] if about else []
        return _of_text(line, message, level, when, ("logger", logger), *drivers)
    return None


def _of_text(line: Line, message: str, level: str, clock: str, *fields: tuple[str, str]) -> Entry:
    """The entry of a line that is plain text."""
    level_name = _LEVEL[level.lower()]
    return Entry(message, line.offset, line.end, level_name, level, clock=clock, fields=fields)


def _of_json(line: Line) -> Entry | None:
    """The entry of a JSON object: Weir's, or Spark's structured log (``ts``, ``msg``)."""
    try:
        values = json.loads(line.text)
    except (ValueError, RecursionError):  # Text of the pipeline's, which may nest at will.
        return None
    message = values.pop("message", values.pop("msg", None))
    level, at = values.pop("level", None), _moment(values.pop("at", values.pop("ts", None)))
    if not isinstance(message, str) or _LEVEL.get(str(level).lower()) is None:
        return None
    more = values.pop("traceback", "")
    return Entry(
        message,
        line.offset,
        line.end,
        _LEVEL[str(level).lower()],
        str(level).upper(),
        at=at,
        clock="" if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC",
        fields=tuple((str(name), _text(value)) for name, value in values.items()),
        more=_text(more),
    )


def _moment(given: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(given)
        return at.astimezone(UTC) if at.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
