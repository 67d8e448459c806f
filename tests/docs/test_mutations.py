"""The list of planted bugs is about lines that are there, and its page is about the list."""

from pathlib import Path

import pytest

from tests.mutations.__main__ import REPORT, ROOT
from tests.mutations.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{Path(m.file).stem}-{m.before[:40]}")
def test_a_planted_bug_changes_one_line_that_is_there(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert mutant.tests
    for path in mutant.tests:
        assert (ROOT / path).exists(), path


def test_the_page_has_a_row_for_each() -> None:
    rows = [line for line in REPORT.read_text().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [mutant.file for mutant in MUTANTS]
