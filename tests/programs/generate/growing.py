"""A program while it grows: what is drawn for it, its stages and its streams."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.programs.model import Output, Program, Stage, Stream

T = TypeVar("T")


class Growing:
    """A program while it grows.

    ``draw`` is Hypothesis'; a source has at least ``rows_min`` records.
    """

    def __init__(self, draw: Callable[[Any], Any], avoid: frozenset[str], rows_min: int) -> None:
        self.draw = draw
        self.rows_min = rows_min
        self._avoid = avoid
        self._number = 0
        self.stages: list[Stage] = []
        self.streams: list[Stream] = []
        self._read: set[str] = set()

    # Drawing.

    def pick(self, options: Sequence[T]) -> T:
        """One of them; the first is the simplest."""
        picked: T = self.draw(st.sampled_from(options))
        return picked

    def flip(self) -> bool:
        """True or False, which is the simpler."""
        return bool(self.draw(st.booleans()))

    def avoids(self, tag: str) -> bool:
        """Whether an idiom is to be left out."""
        return tag in self._avoid

    def may(self, tag: str) -> bool:
        """Whether an idiom is wanted and drawn."""
        return not self.avoids(tag) and self.flip()

    def wanted(self, tags: Iterable[str]) -> list[str]:
        """The idioms that are not left out."""
        return [tag for tag in tags if not self.avoids(tag)]

    # Writing.

    def next_number(self) -> int:
        """The number of the next stream."""
        self._number += 1
        return self._number

    def add(self, text: str, stream: Stream, *tags: str) -> Stream:
        """A stage is written."""
        self.stages.append(Stage(text, frozenset(tags)))
        self.streams.append(stream)
        return stream

    def reads(self, stream: Stream) -> None:
        """A stage reads a stream, which needs no sink then."""
        self._read.add(stream.name)

    def unread(self) -> list[Stream]:
        """The streams that nothing reads."""
        return [stream for stream in self.streams if stream.name not in self._read]

    def finish(self) -> Program:
        """The program; every stream that nothing reads gets a sink."""
        outputs = [
            Output(f"out-{s.name[1:]}", s.name, s.order, s.parallelism) for s in self.unread()
        ]
        return Program(tuple(self.stages), tuple(outputs))
