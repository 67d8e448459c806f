"""The entries of a log, and the search for some of them."""

import json
import os
from pathlib import Path

import pytest

from frontend.about import log_search
from frontend.about.log_entries import (
    TEXT_CHARACTERS_MAX,
    Entry,
    Wanted,
    cut,
    list_entries,
    list_whole_entries,
    parsed,
)
from frontend.about.log_tail import Line

SPARK = "26/03/01 12:00:00 ERROR Executor: Exception in task 0.0"
PYTHON = """Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in f
weir.errors.Stopped: b"""
JVM = """org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.Dag.run(Dag.scala:7)
Caused by: java.io.IOException: no disk
\t... 12 more"""


def entries(text: str, *, is_beginning: bool = True) -> list[Entry]:
    lines, at = [], 0
    for line in text.split("\n"):
        lines.append(Line(line, at, at + len(line) + 1))
        at += len(line) + 1
    return list_entries(lines, is_beginning=is_beginning)


def test_weir_s_line_has_time_level_message_and_fields() -> None:
    line = {"at": "2026-03-01T12:00:00.123+02:00", "level": "warning", "logger": "weir.a"}
    line |= {"message": "b\nc", "job": "flights", "driver": 3, "traceback": "Traceback"}
    (entry,) = entries(json.dumps(line))
    assert (entry.text, entry.level, entry.tone) == ("b\nc", "warning", "warn")
    assert entry.clock == "2026-03-01 10:00:00.123 UTC"
    assert entry.fields == (("logger", "weir.a"), ("job", "flights"), ("driver", "3"))
    assert entry.more == "Traceback"


@pytest.mark.parametrize(
    ("text", "level", "clock", "message", "logger"),
    [
        (SPARK, "error", "2026-03-01 12:00:00", "Exception in task 0.0", "Executor"),
        ("26/03/01 12:00:00 WARN Utils: a: b", "warning", "2026-03-01 12:00:00", "a: b", "Utils"),
        (
            "2026-03-01 12:00:00,123 INFO flights-1/2 weir.jobmaster: running",
            *("info", "2026-03-01 12:00:00.123", "running", "weir.jobmaster"),
        ),
    ],
)
def test_spark_s_and_plain_lines_have_them_too(
    text: str, level: str, clock: str, message: str, logger: str
) -> None:
    (entry,) = entries(text)
    assert (entry.level, entry.clock, entry.text) == (level, clock, message)
    assert entry.fields[0] == ("logger", logger)
    assert entry.at is None  # The zone is unknown, so the page does not convert it.


@pytest.mark.parametrize(
    ("text", "tone"),
    [
        ("weir: started", ""),
        ("26/03/01 12:00:00 Utils: no level", ""),
        ("{'a': 1}", ""),
        ('{"message": 1, "level": "info"}', ""),
        ('{"message": "a", "level": ["info"]}', ""),
        ('{"message": "a"}', ""),
        ('{"a": ' * 100_000, ""),
        ('{"level": ' + "9" * 5_000 + "}", ""),
        ("ERROR no disk", "bad"),
        ("weir.errors.UserError: there is no column", "bad"),
        ("WARNING: old", "warn"),
        ("no errors, no warnings", ""),
    ],
)
def test_any_other_line_stays_as_it_is(text: str, tone: str) -> None:
    (entry,) = entries(text)
    assert (entry.text, entry.tone, entry.level_text, entry.fields) == (text, tone, "", ())


@pytest.mark.parametrize("trace", [PYTHON, JVM, PYTHON + "\n" + JVM])
def test_a_traceback_is_with_its_line(trace: str) -> None:
    first, second, third = entries(f"{SPARK}\n{trace}\nsomething else\n{SPARK}")
    assert (first.text, first.more) == ("Exception in task 0.0", trace)
    assert first.end == second.offset == len(f"{SPARK}\n{trace}\n".encode())
    assert second.text == "something else"
    assert third.more == ""


def test_a_traceback_of_its_own_is_one_entry() -> None:
    first, second, third = entries(f"started\n{PYTHON}\nKeyError: not of it")
    assert (first.text, second.text, second.tone) == ("started", PYTHON, "bad")
    assert third.text == "KeyError: not of it"


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):", "\tat a.B", "Caused by: b"]
)
def test_any_of_its_lines_may_be_the_first_that_is_read(text: str) -> None:
    first, second = entries(f"{text}\n{SPARK}", is_beginning=False)
    assert (first.is_rest, first.text, second.is_rest) == (True, text, False)


def test_an_error_s_line_at_the_beginning_may_be_the_end_of_a_traceback_before_it() -> None:
    lines = [Line("KeyError: 'a'", 0, 14), Line(SPARK, 14, 80)]
    assert [entry.offset for entry in list_whole_entries(lines)] == [14]
    assert [entry.offset for entry in list_whole_entries(lines[:1])] == [0]
    assert [entry.offset for entry in list_whole_entries(lines[::-1])] == [14, 0]


def test_printed_lines_that_are_indented_stay_lines() -> None:
    assert [entry.text for entry in entries("a\n  b\n\n  c")] == ["a", "  b", "", "  c"]


def test_the_rest_of_an_entry_that_began_before_is_told_apart() -> None:
    text = "  File 'a.py', line 3, in f\nKeyError: 'a'\nstarted"
    first, second = entries(text, is_beginning=False)
    assert (first.is_rest, first.text) == (True, "  File 'a.py', line 3, in f\nKeyError: 'a'")
    assert (second.is_rest, second.text) == (False, "started")
    assert not any(entry.is_rest for entry in entries(text))


def test_long_texts_are_cut_and_say_how_much_is_missing() -> None:
    said = cut("z" * (TEXT_CHARACTERS_MAX + 1_234))
    assert said.endswith("z… (1,234 more characters in the download)")
    (entry,) = entries("z" * (TEXT_CHARACTERS_MAX + 1_234))
    assert entry.shown().text == said
    assert Wanted("zzz").matches(entry)


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (Wanted(), True),
        (Wanted("TASK 0"), True),
        (Wanted("executor"), True),
        (Wanted("no disk"), True),
        (Wanted("logger"), False),  # The name of a field is on every line.
        (Wanted(level="info"), True),
        (Wanted(level="error"), True),
        (Wanted("absent", "error"), False),
    ],
)
def test_a_filter_looks_at_all_that_an_entry_has(wanted: Wanted, kept: bool) -> None:
    (entry,) = entries(f"{SPARK}\n{JVM}")
    assert wanted.matches(entry) is kept


def test_a_level_keeps_back_lighter_ones_and_lines_without_one() -> None:
    (plain,) = entries("started")
    (info,) = entries("26/03/01 12:00:00 INFO Utils: a")
    assert [Wanted(level="info").matches(entry) for entry in (plain, info)] == [False, True]
    assert not Wanted(level="warning").matches(info)


# ---- Searching -----------------------------------------------------------------------------------


def look_for(log: Path, wanted: Wanted, end: int | None = None) -> log_search.Shown:
    with log.open("rb") as file:
        return log_search.search(file, end, wanted)


@pytest.mark.parametrize(
    "words",
    ['quote " and \\ back', "zürich", "ZÜRICH", "red line", "a\tb", "no disk", "\U0001f600"],
)
def test_a_search_misses_no_line_that_the_filter_lets_through(tmp_path: Path, words: str) -> None:
    """Blocks are passed over by their bytes, in which texts are escaped or coloured."""
    log, level = tmp_path / "driver.log", "info"
    messages = ['a quote " and \\ backslash', "in Zürich", "a\tb", "smile \U0001f600"]
    rows = [
        json.dumps({"message": text, "level": level}, ensure_ascii=ascii)
        for text in messages
        for ascii in (True, False)
    ]
    rows += ["\x1b[31mred \x1b[0mline", f"{SPARK}\n{JVM}"]
    log.write_text("\n".join(rows) + "\n")
    shown = look_for(log, Wanted(words))
    with log.open("rb") as file:
        everything = log_search.before(file, None).entries
    expected = [entry for entry in everything if Wanted(words).matches(entry)]
    assert expected
    assert shown.entries == expected


def test_searches_meet_every_matching_entry_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "BLOCK_BYTES", 300)
    monkeypatch.setattr(log_search, "SEARCHED_BYTES_MAX", 2_000)
    monkeypatch.setattr(log_search, "ENTRIES_MAX", 3)
    log = tmp_path / "driver.log"
    rows = [f"{SPARK} of {n}\n{JVM}" if n % 7 == 0 else f"line {n}" for n in range(400)]
    log.write_text("\n".join(rows) + "\n")
    seen, end, looks = [], None, 0
    while end != 0:
        shown = look_for(log, Wanted("no disk"), end)
        seen = [entry.text for entry in shown.entries] + seen
        assert len(shown.entries) <= 3
        end, looks = shown.offset, looks + 1
    assert seen == [f"Exception in task 0.0 of {n}" for n in range(0, 400, 7)]
    assert looks > 5


def test_a_search_stops_within_a_block_where_every_line_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "ENTRIES_MAX", 3)
    log = tmp_path / "driver.log"
    log.write_text("".join(f"line {n}\n" for n in range(10)))
    seen, end = [], None
    while end != 0:
        shown = look_for(log, Wanted("line"), end)
        seen = [entry.text for entry in shown.entries] + seen
        end = shown.offset
    assert seen == [f"line {n}" for n in range(10)]


def test_a_search_in_a_huge_log_stops_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "SEARCHED_BYTES_MAX", 1 << 20)
    log = tmp_path / "driver.log"
    log.write_bytes(b"rare\n" + b"x" * 100)
    os.truncate(log, 1 << 40)  # Sparse: as user code can make it.
    shown = look_for(log, Wanted("rare"))
    assert (list(shown.entries), shown.end, shown.has_earlier) == ([], 1 << 40, True)
    assert 0 < (1 << 40) - shown.offset <= 2 << 20
    near = look_for(log, Wanted("rare"), 200)
    assert [entry.text for entry in near.entries] == ["rare"]


def test_words_that_only_the_form_of_lines_has_cost_a_bounded_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "driver.log"
    row = json.dumps({"message": "a", "level": "info"}) + "\n"
    monkeypatch.setattr(log_search, "PARSED_BYTES_MAX", 400_000)
    log.write_text(row * (1_500_000 // len(row)))
    shown = look_for(log, Wanted("message"))
    assert (list(shown.entries), shown.has_earlier) == ([], True)
    assert shown.end - shown.offset <= 400_000 + log_search.BLOCK_BYTES


def test_a_part_begins_with_an_entry_s_first_line(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    rows = f"{SPARK}\n{PYTHON}\n" * 700
    log.write_text(rows)
    seen, end = [], None
    with log.open("rb") as file:
        while end != 0:
            shown = log_search.before(file, end)
            seen = list(shown.entries) + seen
            end = shown.offset
        forth, at, parts = [], 0, 0
        while at < len(rows):
            shown = log_search.after(file, at, Wanted())
            forth += shown.entries
            at, parts = shown.next_offset, parts + 1
    assert seen == forth
    assert {(entry.text, entry.more) for entry in seen} == {("Exception in task 0.0", PYTHON)}
    assert (len(seen), parts > 2) == (700, True)


def test_a_level_that_is_unknown_makes_no_entry() -> None:
    assert parsed(Line('{"message": "a", "level": "loud"}', 0, 1)) is None
