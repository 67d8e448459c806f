"""Every mistake has a message that names place, value and what to do."""

import re
from pathlib import Path

import pytest

from tests.unit.wrong_programs import functions, records, settings, streams, time_and_state
from tests.unit.wrong_programs.harness import SILENT, Wrong, outcome, run

ALL = [
    *functions.CASES,
    *streams.CASES,
    *records.CASES,
    *time_and_state.CASES,
    *settings.CASES,
]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.mistake)
def test_a_wrong_program_is_told_its_mistake(case: Wrong, tmp_path: Path) -> None:
    assert outcome(case.program, tmp_path) == case.message


def test_no_wrong_program_is_silent() -> None:
    assert len(ALL) >= 80
    assert not [case.mistake for case in ALL if case.message in ("", SILENT)]


def test_messages_name_no_place_of_weirs_own() -> None:
    for case in ALL:
        assert not re.search(r"0x[0-9a-f]{6}|collection-source-1|weir\.errors", case.message)


def test_a_failing_function_shows_the_frames_of_its_author_alone(tmp_path: Path) -> None:
    program = "def parse(line):\n    return int(line)\n"
    program += "env.from_collection(['x']).map(parse).print()\nenv.execute()\n"
    _, error = run(program, tmp_path)
    assert re.sub(r"^job \S+ ", "", error).splitlines() == [
        "failed: 'Map' (pipeline.py:3) failed on the record 'x': "
        "ValueError: invalid literal for int() with base 10: 'x'",
        "(in the subtask collection-source-1-0)",
        "Traceback (most recent call last):",
        '  File "pipeline.py", line 2, in parse',
        "ValueError: invalid literal for int() with base 10: 'x'",
    ]


def test_a_right_program_is_told_nothing(tmp_path: Path) -> None:
    """Its function has what remarks are made of, and means it: a table as default, no return."""
    program = """
tag = OutputTag("odd")
class Split(ProcessFunction):
    def process_element(self, value, ctx, names={0: "even"}):
        if value % 2:
            yield tag, value
        else:
            yield names[0]
numbers = env.from_collection([1, 2]).process(Split())
numbers.print()
numbers.get_side_output(tag).flat_map(lambda odd: [] if odd == 1 else None).print()
env.execute()
"""
    assert run(program, tmp_path) == ([], "")
