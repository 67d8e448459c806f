"""The division of a command line between Weir and the pipeline's script.

One rule: Weir's options are recognised before and behind the script; all else behind the script is
the script's, in its order; and so is all behind ``--``, Weir's options too::

    weir run --parallelism 2 script.py --interval 1s --input in.txt -- --interval 7

gives the script ``--input in.txt --interval 7``. An option that Weir does not have but nearly has
is refused, since a script that reads no arguments would not notice.
"""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

NEAR = 0.85  # Of difflib: --paralelism and --storage-dir are near, --input and --output are not.


class CommandParser(ArgumentParser):
    """The parser of a command; one that runs a script sets the script's own arguments aside.

    The namespace gets them as ``script_arguments``.
    """

    def __init__(self, *args: Any, runs_script: bool = False, **kwargs: Any) -> None:
        self._runs_script = runs_script
        self._takes: dict[str, int] = {}  # How many values each option takes: none or one.
        super().__init__(*args, **kwargs)

    def add_argument(self, *args: Any, **kwargs: Any) -> Action:
        """Add an argument, as in argparse."""
        action = super().add_argument(*args, **kwargs)
        for option in action.option_strings:
            self._takes[option] = 0 if action.nargs == 0 else 1
        return action

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse Weir's arguments; the script's are set aside."""
        if not self._runs_script:
            return super().parse_known_args(args, namespace)
        own, scripts = self._divide(list(args or ()))
        parsed, unknown = super().parse_known_args(own, namespace)
        parsed.script_arguments = scripts
        return parsed, unknown

    def _divide(self, words: list[str]) -> tuple[list[str], list[str]]:
        own: list[str] = []
        scripts: list[str] = []
        has_script = False
        while words:
            word = words.pop(0)
            if word == "--":
                if not has_script and words:  # Only for a script whose name begins with a hyphen.
                    own += ["--", words.pop(0)]
                return own, scripts + words
            option, equals, _ = word.partition("=")
            if option in self._takes:
                own.append(word)
                if self._takes[option] and not equals and words:
                    own.append(words.pop(0))
            elif has_script:
                self._refuse_near(option)
                scripts.append(word)
            else:
                own.append(word)
                has_script = not word.startswith("-")
        return own, scripts

    def _refuse_near(self, option: str) -> None:
        if not option.startswith("--"):
            return
        known = [each for each in self._takes if not _is_longer(option, each)]
        near = [each for each in known if each.startswith(option) and len(option) > 4]
        if near := near or get_close_matches(option, known, 1, NEAR):
            self.error(
                f"{option} is no option of Weir's: is it {near[0]}? An option of the script goes "
                f"behind --, as in: SCRIPT -- {option} ..."
            )


def _is_longer(option: str, known: str) -> bool:
    """Whether an option is a word of its own that begins like Weir's: ``--model``, not ``--modes``.

    A doubled last letter and a plural are slips.
    """
    rest = option.removeprefix(known)
    return option.startswith(known) and not set(rest) <= {known[-1], "s"}
