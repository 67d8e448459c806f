"""``python -m tests.mutations [TEXT ...] [--workers N]``: tries the listed mutations.

Each is tried in a copy of the tree, one after the other, with the tests that the list names for its
file; the first one that fails has noticed it. Given texts choose the mutants whose file contains
one of them. Outcomes are kept in ``build/mutations.json``; once all are known ``docs/mutations.md``
is written. The exit code is 1 if less than 95 of a hundred were noticed.
"""

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "mutations.md"
KEPT = ROOT / "build" / "mutations.json"
NOTICED_AT_LEAST = 0.95
SEEDS = "100"  # Of the simulations among the tests.
PATIENCE_S = 1_200  # A mutant that makes tests hang is noticed as well.
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "__pycache__", ".mypy_cache")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A mutant that was tried."""

    mutant: Mutant
    noticed_by: str  # A test; empty: none.
    seconds: float = 0.0


def attempt(mutant: Mutant, tree: Path) -> Outcome:
    """Plant a bug in a copy of the tree, ask the tests, and take it out again."""
    file = tree / mutant.file
    text = file.read_text()
    assert text.count(mutant.before) == 1, f"{mutant.file} has not one {mutant.before!r}"
    began = time.monotonic()
    file.write_text(text.replace(mutant.before, mutant.after))
    try:
        noticed_by = ask(mutant.tests, tree)
    finally:
        file.write_text(text)
    if "::" in noticed_by and ask([noticed_by], tree):
        noticed_by = ""  # It fails without the bug as well, so it has noticed nothing.
    return Outcome(mutant, noticed_by, time.monotonic() - began)


def ask(tests: Sequence[str], tree: Path) -> str:
    """The first of these tests that fails in a copy of the tree; empty: all pass."""
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not whole", "--timeout=300")
    profile = "--hypothesis-profile=unshrunk"
    environment = os.environ | {"PYTHONPATH": str(tree), "WEIR_TEST_SEEDS": SEEDS}
    for test in tests:
        command = (sys.executable, "-m", "pytest", *options, profile, test)
        try:
            done = subprocess.run(
                command,
                cwd=tree,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{test} (it hangs)"
        if done.returncode not in (0, 5):  # 5: none of this file belongs to the quick ones.
            failed = _FAILED.search(done.stdout)
            return failed[1] if failed else f"{test} (it cannot be collected)"
    return ""


def attempt_all(mutants: Sequence[Mutant], workers: int) -> list[Outcome]:
    """Try mutants side by side, each worker with a copy of the tree; in the list's order."""
    with tempfile.TemporaryDirectory(prefix="weir-mutations-") as directory:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            tree = Path(directory) / str(number)
            shutil.copytree(ROOT, tree, ignore=_LEFT_OUT, symlinks=True)
            trees.put(tree)

        def on_some_tree(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                outcome = attempt(mutant, tree)
            finally:
                trees.put(tree)
            said = outcome.noticed_by or "NOT NOTICED"
            print(f"{outcome.seconds:6.1f} s  {mutant.file}: {mutant.after}  {said}", flush=True)
            return outcome

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(on_some_tree, mutants))


def keep(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """All outcomes that are known, these among them, in the list's order."""
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    known |= {_key(outcome.mutant): outcome.noticed_by for outcome in outcomes}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(known, indent=1))
    return [Outcome(one, known[_key(one)]) for one in MUTANTS if _key(one) in known]


def _key(mutant: Mutant) -> str:
    return f"{mutant.file}: {mutant.before} -> {mutant.after}"


def report(outcomes: Sequence[Outcome]) -> str:
    """The page of the documentation."""
    noticed = sum(1 for outcome in outcomes if outcome.noticed_by)
    lines = [
        "# Planted bugs",
        "",
        f"Of {len(outcomes)} bugs, planted one at a time, each in one line, {noticed} are noticed.",
        "`python -m tests.mutations` tries them again and writes this page. Their list is",
        "`tests/mutations/mutants.py`: lines where a slip would lose, double or reorder records,",
        "delete what is needed, let in what must stay out, or show what is not true. Bugs in the",
        "protocol that only a simulated run can show are planted in `tests/simulation`.",
        "",
        "| File | Line | With the bug | Noticed by |",
        "|---|---|---|---|",
    ]
    for outcome in outcomes:
        one = outcome.mutant
        name = outcome.noticed_by.rpartition("/")[2].replace(".py::", ": ")
        cells = (f"`{one.file}`", _code(one.before), _code(one.after), name or "**no test**")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if text else "(nothing)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="part of a file's name")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    chosen = [m for m in MUTANTS if not asked.texts or any(t in m.file for t in asked.texts)]
    if not chosen:
        parser.error("no mutant's file has this in its name")
    outcomes = attempt_all(chosen, asked.workers)
    known = keep(outcomes)
    if len(known) == len(MUTANTS):
        REPORT.write_text(report(known))
    noticed = sum(1 for outcome in outcomes if outcome.noticed_by)
    print(f"{noticed} of {len(outcomes)} were noticed")
    return 0 if noticed >= NOTICED_AT_LEAST * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
