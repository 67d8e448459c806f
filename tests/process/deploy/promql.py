"""The metrics and labels that an expression of PromQL names.

Prometheus judges the grammar. This reads every character of the expression as a token, so that a
name cannot be passed over, and refuses selectors without a metric's name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<range>\[[0-9a-z:]+\])
      | (?P<number>[0-9][0-9a-z.]*)
      | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
      | (?P<operator>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])""",
    re.VERBOSE,
)
_LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric and its matchers, as (label, operator, value)."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


@dataclass(slots=True)
class Names:
    """The selectors of an expression, and the labels that it groups and joins by."""

    selectors: list[Selector] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)


def names(expression: str) -> Names:
    """The names in an expression without Grafana's variables.

    Raises:
        ValueError: It has a character or a selector that this does not read.
    """
    tokens = list(_tokens(expression))
    read = Names()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if text == "{":
            raise ValueError(f"a selector without the name of a metric: {expression}")
        if kind != "name" or text in _WORDS:
            continue
        if text in _LABEL_LISTS:
            if following == "(":
                end = _closing(tokens, at, ")")
                read.labels |= {label for kind, label in tokens[at:end] if kind == "name"}
                at = end + 1
        elif following == "{":
            end = _closing(tokens, at, "}")
            read.selectors.append(Selector(text, tuple(_matchers(tokens[at + 1 : end]))))
            at = end + 1
        elif following != "(" and following not in ("by", "without"):
            read.selectors.append(Selector(text, ()))
    return read


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"{expression[at : at + 20]!r} is no token, in {expression}")
        at = match.end()
        assert match.lastgroup is not None
        if match.lastgroup != "space":
            yield match.lastgroup, match.group()


def _closing(tokens: list[tuple[str, str]], at: int, bracket: str) -> int:
    texts = [text for _, text in tokens]
    return texts.index(bracket, at)


def _matchers(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    parts = [token for token in tokens if token[1] != ","]
    if len(parts) % 3:
        raise ValueError(f"matchers are not label, operator, string: {parts}")
    for at in range(0, len(parts), 3):
        (_, label), (_, operator), (kind, value) = parts[at : at + 3]
        if kind != "string":
            raise ValueError(f"{value} is no string")
        yield label, operator, value[1:-1]
