"""``python -m tests.programs [--seconds N]``: draw programs until the time is up, or one is wrong.

Prints how many programs and runs there were, which faults fired and which idioms occurred. For a
finding it prints the smallest program as a script to paste and run, with what it means and gave.
"""

import argparse
import math
import sys
import time
from collections import Counter

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from tests.programs.check import Wrong, check, meaning_of
from tests.programs.generate import programs, variations
from tests.programs.model import Program
from tests.programs.run import Variation
from tests.programs.source_text import body_of, script_of
from tests.programs.values import remove_files

VARIATIONS = 2  # Of each program.
ROUND = 200  # Programs between two looks at the clock.
SHRINKING_SECONDS = 40.0


class Fuzz:
    """Counts of what was run, and what was wrong."""

    def __init__(self, avoid: frozenset[str]) -> None:
        self._avoid = avoid
        self.programs = 0
        self.runs = 0
        self.must_fail = 0
        self.fired: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.wrong: tuple[Program, Variation, Wrong] | None = None  # The smallest so far.
        self._give_up_at = math.inf  # When shrinking has to come to its end.

    def round(self, until: float) -> None:
        """Draw some programs, and shrink the first wrong one.

        Raises:
            Wrong: There was one; ``wrong`` has it.
        """

        @settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(
            programs(self._avoid), st.lists(variations(), min_size=VARIATIONS, max_size=VARIATIONS)
        )
        def draw(program: Program, varied: list[Variation]) -> None:
            now = time.monotonic()
            is_known = self.wrong is not None and self.wrong[0] == program
            if is_known or now < (until if self.wrong is None else self._give_up_at):
                self.one(program, varied)

        draw()

    def one(self, program: Program, varied: list[Variation]) -> None:
        """Check one program under its variations."""
        text = body_of(program)
        meaning = meaning_of(text)
        self.programs += 1
        self.must_fail += meaning.refusal is not None
        self.tags.update(program.tags)
        for variation in varied:
            try:
                outcome = check(text, program.outputs, meaning, variation)
            except Wrong as wrong:
                if self.wrong is None:
                    self._give_up_at = time.monotonic() + SHRINKING_SECONDS
                self.wrong = program, variation, wrong
                raise
            self.runs += 1
            self.fired.update(+outcome.fired)

    def smallest(self) -> tuple[Program, Variation, Wrong]:
        """The wrong program, or the part of it that makes one output, where that is wrong too."""
        assert self.wrong is not None
        program, variation, wrong = self.wrong
        for output in program.outputs:
            part = program.up_to(output)
            text = body_of(part)
            try:
                check(text, part.outputs, meaning_of(text), variation)
            except Wrong as of_part:
                return part, variation, of_part
        return program, variation, wrong

    def told(self) -> str:
        """The counts."""
        fired = ", ".join(f"{what} {count}" for what, count in self.fired.most_common())
        tags = ", ".join(f"{what} {count}" for what, count in self.tags.most_common())
        return (
            f"{self.programs} programs ({self.must_fail} that must fail), {self.runs} runs\n"
            f"happened: {fired}\nidioms: {tags}"
        )


def main(arguments: list[str] | None = None) -> int:
    """Draw programs; 1 where one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--avoid", default="", help="idioms to leave out, with commas between")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.seconds
    fuzz = Fuzz(frozenset(filter(None, options.avoid.split(","))))
    try:
        while time.monotonic() < until:
            fuzz.round(until)
    except (Wrong, HypothesisException, ExceptionGroup):
        if fuzz.wrong is None:
            raise
    finally:
        print(fuzz.told())
        remove_files()
    if fuzz.wrong is None:
        return 0
    program, variation, wrong = fuzz.smallest()
    print(f"\n{script_of(program, variation)}\n# {'# '.join(str(wrong).splitlines(keepends=True))}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
