"""The lines of a log that a part holds, for logs of every shape."""

from pathlib import Path

import pytest

from frontend.about import log_tail
from frontend.about.log_tail import (
    LINE_BYTES_MAX,
    PART_BYTES,
    LastBytes,
    Part,
    as_text,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "driver.log"


def before(log: Path, end: int | None, length: int = PART_BYTES) -> Part:
    with log.open("rb") as file:
        return log_tail.before(file, end, length)


def after(log: Path, offset: int, length: int = PART_BYTES) -> Part:
    with log.open("rb") as file:
        return log_tail.after(file, offset, length)


def texts(part: Part) -> list[str]:
    return [line.text for line in part.lines]


def numbered(count: int) -> bytes:
    return b"".join(b"line %05d\n" % n for n in range(count))  # 11 bytes each.


def test_an_empty_log_has_no_lines(log: Path) -> None:
    log.write_bytes(b"")
    part = before(log, None)
    assert (texts(part), part.unfinished, part.size) == ([], "", 0)
    assert (part.has_earlier, part.has_later) == (False, False)


def test_last_bytes_end_where_the_log_ended_when_it_was_opened(log: Path) -> None:
    log.write_bytes(b"0123456789")
    with log.open("rb") as file:
        last = LastBytes(file, 4)
        with log.open("ab") as writer:
            writer.write(b"more")
        assert (last.length, last.read(3), last.read(), last.read()) == (4, b"678", b"9", b"")
        last.close()
        assert file.closed


def test_a_short_log_is_shown_whole_with_what_is_not_finished(log: Path) -> None:
    log.write_bytes(b"a\n\nb\nc")
    part = before(log, None)
    assert (texts(part), part.unfinished) == (["a", "", "b"], "c")
    assert (part.offset, part.next_offset, part.end, part.size) == (0, 5, 6, 6)
    assert (part.has_earlier, part.has_later) == (False, False)


def test_a_part_begins_and_ends_between_two_lines(log: Path) -> None:
    log.write_bytes(numbered(1_000))
    part = before(log, None, 100)
    assert texts(part) == [f"line {n:05}" for n in range(991, 1_000)]
    assert (part.offset, part.end) == (991 * 11, 11_000)
    earlier = before(log, part.offset, 100)
    assert texts(earlier)[-1] == "line 00990"
    assert (earlier.has_earlier, earlier.has_later) == (True, True)


def test_going_back_and_forth_meets_every_line_once(log: Path) -> None:
    log.write_bytes(numbered(500))
    back, end = [], None
    while end != 0:
        part = before(log, end, 256)
        back, end = texts(part) + back, part.offset
    forth, begin = [], 0
    while begin < 5_500:
        part = after(log, begin, 256)
        forth, begin = forth + texts(part), part.next_offset
    assert back == forth == [f"line {n:05}" for n in range(500)]


def test_following_gives_only_what_is_new_and_an_unfinished_line_again(log: Path) -> None:
    log.write_bytes(b"a\nb")
    place = before(log, None).next_offset
    assert after(log, place).unfinished == "b"
    with log.open("ab") as file:
        file.write(b"c\nd\n")
    part = after(log, place)
    assert (texts(part), part.unfinished, part.next_offset) == (["bc", "d"], "", 7)
    part = after(log, 7)
    assert (texts(part), part.unfinished, part.next_offset) == ([], "", 7)


def test_a_log_that_became_shorter_was_rotated(log: Path) -> None:
    log.write_bytes(b"new\n")
    part = after(log, 9_999)
    assert (part.is_rotated, texts(part), part.next_offset) == (True, ["new"], 4)


def test_a_line_longer_than_a_part_comes_in_pieces(log: Path) -> None:
    log.write_bytes(b"x" * (3 * PART_BYTES - 10) + b"\nend\n")
    place, pieces = 0, []
    while place < 3 * PART_BYTES - 5:
        part = after(log, place)
        assert part.next_offset > place
        place = part.next_offset
        pieces.append([text[-3:] for text in texts(part)])
    # The last part is what is left of it, and the line behind it.
    assert pieces == [["xxx"], ["xxx"], ["xxx", "end"]]


def test_a_long_unfinished_line_does_not_hold_back_what_follows(log: Path) -> None:
    log.write_bytes(b"y" * (LINE_BYTES_MAX + 1))
    part = after(log, 0)
    assert (len(part.lines), part.unfinished, part.next_offset) == (1, "", LINE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        (b"windows\r", "windows"),
        (b"[Stage 0:>   ]\r[Stage 0:==> ]\rdone", "done"),
        (b"\x1b[31;1mred\x1b[0m", "red"),
        (b"<b>&amp;", "<b>&amp;"),
        ("zürich".encode(), "zürich"),
        (b"\xff\x00", "\N{REPLACEMENT CHARACTER}" * 2),
    ],
)
def test_a_line_is_what_a_terminal_would_have_left(data: bytes, text: str) -> None:
    assert as_text(data) == text
