"""Long texts of others (causes, tracebacks) cut to what a page shows."""

TEXT_CHARACTERS_MAX = 8_000  # A traceback is rarely longer; its end says what happened.
HEADLINE_CHARACTERS_MAX = 300
_TRACEBACK = "Traceback (most recent call last):"


def headline(text: str) -> str:
    """The line that says what happened: a traceback's last one, else the first."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith(_TRACEBACK) else lines[0]
    return _cut(line, HEADLINE_CHARACTERS_MAX)


def _cut(line: str, at_most: int) -> str:
    return line if len(line) <= at_most else line[: at_most - 1] + "…"


def tail(text: str) -> str:
    """The text, or its end where it is very long."""
    text = text.strip()
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return "… (the beginning is left out)\n" + text[-TEXT_CHARACTERS_MAX:]


def has_more(text: str) -> bool:
    """Whether there is more to read than the headline."""
    return headline(text) != text.strip()
