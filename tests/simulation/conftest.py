"""Fixtures of the tests that plant bugs."""

import pytest

from tests.simulation.catching import Show


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Prints although output is captured."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}")

    return say
