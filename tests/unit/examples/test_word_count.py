"""The word count: each word with the number of its occurrences so far, kills or not."""

import pytest

from weir.examples import word_count
from weir.testing import KillPoint, assert_same_output, run

SCRIPT = "weir.examples.word_count"


def test_every_word_is_counted_on() -> None:
    counted = run(SCRIPT, word_count.LINES).output
    words = " ".join(word_count.LINES).split()
    assert len(counted) == len(words)
    last = dict(counted)  # The last count of each word.
    assert last == {word: words.count(word) for word in words}


@pytest.mark.parametrize("point", list(KillPoint))
def test_a_kill_changes_no_count(point: KillPoint) -> None:
    lines = word_count.LINES
    undisturbed = run(SCRIPT, lines, checkpoint_every=1).output
    killed = run(SCRIPT, lines, checkpoint_every=1, kill=point, kill_at=3)
    assert killed.restarts == 1
    assert_same_output(undisturbed, killed.output, key=lambda pair: pair[0])
