"""The one line that tells a cause: of a traceback its last, of other texts their first."""

import re

LENGTH_MAX = 300
_TRACEBACK = "Traceback (most recent call last):"
_SUBTASK_FAILED = re.compile(r"(?P<subtask>\S+-\d+) failed\n(?P<operator>(?!Traceback)[^\n]+)")


def headline(text: str) -> str:
    """The line with the error, cut to ``LENGTH_MAX`` characters; empty for an empty text."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith(_TRACEBACK) else lines[0]
    if said := _SUBTASK_FAILED.match(text.strip()):
        line = f"{said['subtask']} failed: {said['operator']}"
    return line if len(line) <= LENGTH_MAX else line[: LENGTH_MAX - 1] + "…"


def in_one_line(text: str) -> str:
    """The first line of a cause, and the error behind it where that is a traceback."""
    first, _, rest = text.strip().partition("\n")
    if first.startswith(_TRACEBACK) or _TRACEBACK not in rest or _SUBTASK_FAILED.match(text):
        return headline(text)
    return f"{headline(first)}: {headline(rest.strip().splitlines()[-1])}"
