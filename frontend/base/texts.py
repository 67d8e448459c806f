"""Causes and tracebacks, cut to the length that a page shows."""

TEXT_CHARACTERS_MAX = 8_000  # A traceback is rarely longer; its end has the error.
HEADLINE_CHARACTERS_MAX = 300
_TRACEBACK = "Traceback (most recent call last):"


def headline(text: str) -> str:
    """The line with the error: a traceback's last line, else the first line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith(_TRACEBACK) else lines[0]
    return _cut(line, HEADLINE_CHARACTERS_MAX)


def _cut(line: str, at_most: int) -> str:
    return line if len(line) <= at_most else line[: at_most - 1] + "…"


def tail(text: str) -> str:
    """The text, or its end where it is longer than ``TEXT_CHARACTERS_MAX``."""
    text = text.strip()
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return "… (beginning left out)\n" + text[-TEXT_CHARACTERS_MAX:]


def has_more(text: str) -> bool:
    """Whether the text has more than its headline."""
    return headline(text) != text.strip()
