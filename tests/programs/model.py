"""A program as data: its streams in the order in which they are written, and where they end.

Order and time of a stream say which stages may follow it so that the result does not depend on
parallelism, slices and delays:

- *order*: ``TOTAL`` (one sequence), ``KEY`` (a sequence for each value of the first field) or
  ``NONE``; ``LAST`` is a running aggregate in columns: its rows depend on the slices, and only the
  last one of each key does not.
- *time*: ``EXACT`` (the watermark passes multiples of the resolution at known records), ``SAFE``
  (no record is ever late, but when a watermark comes is undefined), ``NONE``.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto


class Order(Enum):
    """The extent to which the order of a stream's records is defined."""

    TOTAL = auto()
    KEY = auto()
    NONE = auto()
    LAST = auto()


class Time(Enum):
    """The extent to which the event time of a stream is defined."""

    EXACT = auto()
    SAFE = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of a program; its records have three fields: a key, a time and a value.

    ``form`` is tuple, list, dict, row (with names) or bare (a Row without them). ``key`` and
    ``value`` name the kinds of ``kinds``. ``parallelism`` None is the job's own.
    """

    name: str
    form: str
    key: str
    value: str
    order: Order
    time: Time
    late_free: bool = True
    parallelism: int | None = None
    is_typed: bool = False  # A type is declared, or the columns are those of a file.


_MADE = re.compile(r"^(s\d+) = ", re.MULTILINE)
_NAMED = re.compile(r"\bs\d+\b")


@dataclass(frozen=True, slots=True)
class Stage:
    """The text that makes one stream: definitions and a statement."""

    text: str
    tags: frozenset[str]  # The idioms in it, for counts and for leaving them out.

    @property
    def makes(self) -> frozenset[str]:
        """The streams that it defines."""
        return frozenset(_MADE.findall(self.text))

    @property
    def reads(self) -> frozenset[str]:
        """The streams that it names, its own among them."""
        return frozenset(_NAMED.findall(self.text))


@dataclass(frozen=True, slots=True)
class Output:
    """A sink: the uid of its operator, and how far the order of its records is defined."""

    uid: str
    stream: str
    order: Order
    parallelism: int | None = None  # None: the job's own.


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program."""

    stages: tuple[Stage, ...]
    outputs: tuple[Output, ...]

    @property
    def tags(self) -> frozenset[str]:
        """All idioms in it."""
        return frozenset().union(*(stage.tags for stage in self.stages))

    def up_to(self, output: Output) -> "Program":
        """The part of the program that one output needs."""
        needed = {output.stream}
        stages: list[Stage] = []
        for stage in reversed(self.stages):
            if stage.makes & needed:
                needed |= stage.reads
                stages.append(stage)
        return Program(tuple(reversed(stages)), (output,))
