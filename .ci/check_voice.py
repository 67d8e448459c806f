#!/usr/bin/env python3
"""The part of the house's voice that a program can see; prints each place that breaks it.

- A docstring names its subject: none begins with What, Who, Where or How.
- No pronoun stands where a component belongs: somebody, nobody, whoever, whatever.
- A function is a verb and a noun, not ``of`` (PyFlink's ``Windows.of`` is not ours to name).
- A variable is called by what it holds, not ``found``.

Usage: ``check_voice.py [path …]``, files or directories; the whole repository without any.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.committed import committed_files

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {".css", ".html", ".js", ".md", ".mjs", ".py", ".toml", ".txt", ".yml", ""}
RIDDLES = re.compile(r"\b(somebody|nobody|whoever|whatever)\b", re.IGNORECASE)
OPENINGS = re.compile(r"\s*(What|Who|Where|How)\b")
# The words as data: this rule, and names that are not ours.
EXCEPT = {".ci/check_voice.py", "LICENSE", "requirements.lock"}
ACCOUNT = '"postgres", "nobody"'  # Of the operating system, by their names.
FLINK_OF = {"weir/operators/windows/window_assigners.py"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
# The kinds of nodes that a rule is about: most nodes are others.
LOOKED_AT = frozenset((*DOCUMENTED, ast.Name, ast.arg, ast.MatchAs, ast.MatchStar))

Place = tuple[int, str]


def riddles(text: str) -> Iterator[Place]:
    """Pronouns in place of nouns, by line."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in RIDDLES.findall(line.replace(ACCOUNT, "")):
            yield number, f"{word!r}: name the component, or say none, any, each"


def names(text: str, *, may_say_of: bool) -> Iterator[Place]:
    """Openings of docstrings and names of functions and variables, by line."""
    for node in ast.walk(ast.parse(text)):
        if type(node) not in LOOKED_AT:
            continue
        doc = ast.get_docstring(node, clean=False) if isinstance(node, DOCUMENTED) else None
        if opening := OPENINGS.match(doc or ""):
            line = node.body[0].lineno
            yield line, f"a docstring begins with {opening[1]}: begin with the noun"
        if isinstance(node, FUNCTIONS) and node.name == "of" and not may_say_of:
            yield node.lineno, "a function is called of: give it a verb and a noun"
        held = (
            (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "found")
            or (isinstance(node, ast.arg) and node.arg == "found")
            or (isinstance(node, ast.MatchAs | ast.MatchStar) and node.name == "found")
        )
        if held:
            yield node.lineno, "a variable is called found: call it by what was found"


def files(paths: list[Path]) -> Iterator[Path]:
    """The repository's own texts below the paths."""
    for name in committed_files():
        path = ROOT / name
        if not any(path.is_relative_to(below) for below in paths or [ROOT]):
            continue
        if not path.is_symlink() and path.suffix in TEXTS and name not in EXCEPT:
            yield path


def main() -> int:
    """Print every place; 1 where there is one."""
    count = 0
    for path in files([Path(given).absolute() for given in sys.argv[1:]]):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(errors="replace")
        places = list(riddles(text))
        if path.suffix == ".py" and "/migrations/" not in name:
            places += names(text, may_say_of=name in FLINK_OF)
        for line, problem in sorted(places):
            print(f"{name}:{line}: {problem}")
        count += len(places)
    if count:
        print(f"voice: {count} places", file=sys.stderr)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
