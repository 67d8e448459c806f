"""Lines of the plain log: one for each record, also where a client sends line ends."""

import logging
import sys

import pytest

from controlplane.base.logs import ContextFilter, PlainFormatter, about

FORGED = "2026-01-01 00:00:00,000 INFO controlplane: all is well"


def lines(message: str, *args: object, exc_info: bool = False, **fields: object) -> list[str]:
    """The lines of a record as the plain log has them."""
    record = logging.LogRecord(
        "controlplane.access", logging.INFO, __file__, 1, message, args,
        sys.exc_info() if exc_info else None,
    )  # fmt: skip
    with about(**fields):
        ContextFilter().filter(record)
    formatter = PlainFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    return formatter.format(record).split("\n")


@pytest.mark.parametrize(
    "character", ["\n", "\r", "\x1b", "\x08", "\0", "\x7f", "\x85", "\x9b", "\u2028", "\u202e"]
)
def test_a_path_or_a_name_forges_no_line(character: str) -> None:
    forged = f"/jobs/{character}{FORGED}"
    for given in (lines("GET %s 404", forged), lines("GET", job=forged), lines(forged)):
        (line,) = given
        assert character not in line
        assert character.encode("unicode_escape").decode() in line


def test_a_traceback_is_indented() -> None:
    try:
        raise ValueError(f"bad\n{FORGED}\x1b[2K")
    except ValueError:
        first, *others = lines("failed", exc_info=True)
    assert first.endswith("failed")
    assert all(line.startswith("    ") for line in others)
    assert any(FORGED in line for line in others)
    assert not any("\x1b" in line for line in others)


def test_plain_text_stays_as_it_is() -> None:
    (line,) = lines("naïve → %s", "日本語 \\n", user="mara")
    assert line.endswith("naïve → 日本語 \\n [user=mara]")
