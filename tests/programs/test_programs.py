"""Random programs give what the plain reading of them gives, under every variation.

The programs are the same in every run of the suite; ``make fuzz`` draws others. Every program runs
twice: calm, and under one other variation. A failure prints the smallest program that shows it.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.programs.check import check, meaning_of
from tests.programs.generate import STATES, TABLES, programs, variations
from tests.programs.generate.sources import ROWS_MAX
from tests.programs.model import Program
from tests.programs.run import Variation
from tests.programs.source_text import body_of, script_of
from tests.seeds import share

BLOCK = 50
BLOCKS = share(500, block=BLOCK) // BLOCK
RESTORED = 20  # Programs, some of which are killed when their checkpoint has changes.
CALM = Variation()

happened: Counter[str] = Counter()
idioms: Counter[str] = Counter()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_program_gives_what_it_means(block: int) -> None:
    drawn = 0

    @seed(block)
    @settings(
        max_examples=BLOCK,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(), variations())
    def draw(program: Program, variation: Variation) -> None:
        nonlocal drawn
        text = body_of(program)
        meaning = meaning_of(text)
        for varied in (CALM, variation):
            try:
                outcome = check(text, program.outputs, meaning, varied)
            except AssertionError as wrong:
                raise AssertionError(f"{wrong}\n{script_of(program, varied)}") from None
            happened.update(+outcome.fired)
        idioms.update(program.tags)
        drawn += 1

    draw()
    assert drawn >= BLOCK / 2


@pytest.mark.parametrize(("kind", "avoid"), [("table", TABLES), ("state", STATES)])
def test_a_program_that_is_killed_goes_on_from_what_changed(
    kind: str, avoid: frozenset[str]
) -> None:
    fired: Counter[str] = Counter()

    @seed(2)
    @settings(
        max_examples=RESTORED,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        programs(avoid, rows_min=ROWS_MAX, stages_max=2), variations(["kill between increments"])
    )
    def draw(program: Program, variation: Variation) -> None:
        text = body_of(program)
        fired.update(check(text, program.outputs, meaning_of(text), variation).fired)

    draw()
    assert fired[f"changes of a {kind} restored"] >= RESTORED / 5, "there was no occasion"


def test_what_must_not_matter_was_varied(capsys: pytest.CaptureFixture[str]) -> None:
    if not happened:
        pytest.skip("only together with the programs")
    with capsys.disabled():
        print(f"\n  {dict(happened)}\n  {dict(idioms)}")
    wanted = {"checkpoint", "encoded", "kill", "stop", "rescale", "wall jump"}
    assert wanted <= happened.keys(), "a fault that never fired showed nothing"
