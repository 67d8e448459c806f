"""The stacks of several subtasks as one: counts by stack, uploaded files by their names. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weir.protocol.inspection import SampledStacks, StackFrame

_STORED = re.compile(r"(?:.*/)?(?P<digest>[0-9a-f]{64})\.py\Z")

Frames = tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class Flames:
    """Samples of the loops of some subtasks, of the last minute, by what they met."""

    span_ms: float  # The longest of them.
    stacks: list[tuple[Frames, int]]  # Outermost frame first; those of most samples first.
    work: int = 0  # Samples within the subtasks, those left out of the stacks too.
    others: int = 0  # In other subtasks of their slots.
    runtime: int = 0  # Between the calls of subtasks.
    waiting: int = 0
    subtasks: int = 1  # That answered.

    @property
    def samples(self) -> int:
        """All samples."""
        return self.work + self.others + self.runtime + self.waiting


def uploads_in(several: Iterable[SampledStacks]) -> set[str]:
    """The digests of uploaded files in which frames are; a launcher names each by its digest."""
    return {
        stored["digest"]
        for one in several
        for frame in one.frames
        if (stored := _STORED.match(frame.file)) is not None
    }


def merged(several: Sequence[SampledStacks], names: Mapping[str, str]) -> Flames:
    """The samples of several subtasks together; ``names`` are those of uploads, by digest."""
    counts: Counter[Frames] = Counter()
    span_ms, left_out, others, runtime, waiting = 0.0, 0, 0, 0, 0
    for one in several:
        for stack in one.stacks:
            frames = tuple(one.frames[at] for at in stack.frames if at < len(one.frames))
            counts[frames] += stack.count
        span_ms = max(span_ms, one.span_ms)
        left_out += one.left_out
        others += one.others
        runtime += one.runtime
        waiting += one.waiting
    work = counts.total() + left_out
    stacks = _with_names(counts, names).most_common()
    return Flames(span_ms, stacks, work, others, runtime, waiting, len(several))


def _with_names(counts: Counter[Frames], names: Mapping[str, str]) -> Counter[Frames]:
    """The stacks with the names of uploaded files in place of their digests."""

    def named(frame: StackFrame) -> StackFrame:
        stored = _STORED.match(frame.file)
        name = None if stored is None else names.get(stored["digest"])
        return frame if name is None else replace(frame, file=name)

    renamed: Counter[Frames] = Counter()
    for frames, count in counts.items():
        renamed[tuple(map(named, frames))] += count
    return renamed
