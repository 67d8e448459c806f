"""The one line that an operation's error says of the cause for which its job failed."""

import pytest

from jobs.headlines import in_one_line

TRACEBACK = "Traceback (most recent call last):\n  File 'v2.py', line 9\nKeyError: 'night'\n"


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("", ""),
        ("4 of 64 slots registered", "4 of 64 slots registered"),
        (f"map-0 failed\n{TRACEBACK}", "map-0 failed: KeyError: 'night'"),
        (
            f"map-0 failed\n'Map' (v2.py:9) failed on the record 7: KeyError: 'night'\n{TRACEBACK}",
            "map-0 failed: 'Map' (v2.py:9) failed on the record 7: KeyError: 'night'",
        ),
        (TRACEBACK, "KeyError: 'night'"),
        ("the driver died\nits log ends:\nbye", "the driver died"),
    ],
)
def test_cause_in_one_line_names_the_error_behind_it(cause: str, said: str) -> None:
    assert in_one_line(cause) == said
