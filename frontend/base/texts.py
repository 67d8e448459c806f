"""Causes and tracebacks, cut to the length that a page shows."""

from jobs.headlines import headline

__all__ = ["has_more", "headline", "tail"]

TEXT_CHARACTERS_MAX = 8_000  # A traceback is rarely longer; its end has the error.


def tail(text: str) -> str:
    """The text, or its end where it is longer than ``TEXT_CHARACTERS_MAX``."""
    text = text.strip()
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return "… (beginning left out)\n" + text[-TEXT_CHARACTERS_MAX:]


def has_more(text: str) -> bool:
    """Whether the text has more than its headline."""
    return headline(text) != text.strip()
