"""Samples of the loop's stack over the last minute: where it works, and a flame graph.

A subtask's busy share says that its chain is slow, not which operator of the chain, nor which line.
So a thread looks at the loop's stack some twenty times a second, whether or not a user asks: a look
is a walk over some twenty frames. The innermost operator on the stack is at work, and the innermost
frame of the user's code inside of it is the line that is; each subtask's report has those of the
last seconds. A request for the whole stacks of the last minute is answered at once.

Looks must not come at equal intervals, or work that repeats as often would be met at one place
only. After a look that met the loop asleep the next one comes later, so that one counts for as
many. A sample holds the code of its frames and no frame, so it keeps no variable alive.

The frames outside of the subtask's call are left out, and so are those of the passage from one
operator of a chain to the next: what remains are the operators, and what each of them calls. A call
into C shows as the line that made it; one that keeps the interpreter lock is met once, at its end.
"""

import sys
from array import array
from collections import Counter, deque
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import NamedTuple

from weir.bounds import NAME_LENGTH_MAX
from weir.common.clock import Clock
from weir.common.tracebacks import is_users_file
from weir.ids import OperatorId, SubtaskId
from weir.operators.base import Operator
from weir.protocol.inspection import (
    DEPTH_MAX,
    FRAMES_MAX,
    STACKS_MAX,
    STACKS_SPAN_MS,
    SampledStack,
    SampledStacks,
    StackFrame,
)
from weir.protocol.messages import SampledCall
from weir.worker.stalls import Calls

CALLS_SPAN_NS = 5_000_000_000
CALLS_SAMPLES_MIN = 5  # Of a subtask; fewer say nothing of where it works.
CALLS_MAX = 3
SLEEPING_LOOKS = 4  # A look at a sleeping loop stands for so many: the next is so much later.
SAMPLES_MAX = 1_500  # Of a minute, and some more: looks come at unequal intervals.
WALK_MAX = 200  # Frames; a chain of many operators has some five each.
_SELECT_DEPTH = 4  # Frames from the selector's out to the loop's.
FILE_PARTS = 2  # Of a path, its end: the file and the directory it is in.
# Around the operators. Its frames last, and so would all that a look at their variables holds.
AROUND_OPERATORS = str(Path(__file__).parent.parent)
# The loop's frame, within which are the calls of subtasks.
_LOOP = str(Path(__file__).parent.parent / "worker.py")


class Place(NamedTuple):
    """The operator at work, and the line of the user's code in it; none of it: empty, and 0."""

    operator: OperatorId
    function: str
    file: str
    line: int


class Stack(NamedTuple):
    """The frames of a sample, innermost first. Shape: all have one entry per frame."""

    codes: tuple[CodeType, ...]
    lines: "array[int]"
    operators: tuple[str, ...]  # Uid of the operator whose method it is; empty: of none.


class Sample(NamedTuple):
    """One look at the loop."""

    at_ns: int
    chain: SubtaskId | None  # None: the loop was in no subtask's call.
    is_asleep: bool
    stack: Stack | None
    place: Place | None = None  # None: no operator is at work.


class StackSamples:
    """The recent samples of one loop, taken and answered by one thread, which is not the loop's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def look(self, loop: Calls, loop_thread: int) -> None:
        """Take one sample."""
        since_ns, chain = loop.calling_since_ns, loop.calling
        frame = sys._current_frames().get(loop_thread)
        if frame is None:
            return  # The thread has ended.
        now_ns = self._clock.monotonic_ns()
        if chain is None:
            self._samples.append(Sample(now_ns, None, is_asleep(frame), None))
            return
        stack = stack_of(frame)
        if loop.calling == chain and loop.calling_since_ns == since_ns:  # Else the call ended.
            self._samples.append(Sample(now_ns, chain, False, stack, place_in(stack)))

    def calls(self) -> Mapping[SubtaskId, tuple[SampledCall, ...]]:
        """The places of each subtask that was met often enough, those of most samples first.

        For the loop's own thread as well.
        """
        oldest_ns = self._clock.monotonic_ns() - CALLS_SPAN_NS
        # From the newest on: most are older. Another thread may be appending.
        newest_first = reversed(list(self._samples))
        recent = list(takewhile(lambda sample: sample.at_ns >= oldest_ns, newest_first))
        places: dict[SubtaskId, Counter[Place]] = {}
        for sample in reversed(recent):
            if sample.chain is not None and sample.place is not None:
                places.setdefault(sample.chain, Counter())[sample.place] += 1
        return {
            chain: tuple(
                SampledCall(*place, share=count / counts.total())
                for place, count in counts.most_common(CALLS_MAX)
            )
            for chain, counts in places.items()
            if counts.total() >= CALLS_SAMPLES_MIN
        }

    def taken(self, chain: SubtaskId) -> SampledStacks:
        """The samples of the last minute, as seen from one subtask."""
        now_ns = self._clock.monotonic_ns()
        oldest_ns = now_ns - STACKS_SPAN_MS * 1_000_000
        samples = [sample for sample in self._samples if sample.at_ns >= oldest_ns]
        table = _Table()
        stacks = Counter(
            table.positions(sample.stack)
            for sample in samples
            if sample.chain == chain and sample.stack is not None
        )
        most = stacks.most_common(STACKS_MAX)
        kept = [(stack, count) for stack, count in most if all(at < FRAMES_MAX for at in stack)]
        asleep = sum(sample.is_asleep for sample in samples)
        outside = sum(sample.chain is None for sample in samples)
        return SampledStacks(
            span_ms=(now_ns - samples[0].at_ns) / 1e6 if samples else 0.0,
            frames=tuple(table.frames[:FRAMES_MAX]),
            stacks=tuple(SampledStack(stack, count) for stack, count in kept),
            left_out=stacks.total() - sum(count for _, count in kept),
            others=len(samples) - outside - stacks.total(),
            runtime=outside - asleep,
            waiting=SLEEPING_LOOKS * asleep,
        )


def is_asleep(frame: FrameType) -> bool:
    """Whether a loop's thread waits at its sockets until there is work; a glance at them is none.

    Source: ``weir.channels.io_thread``: the loop calls ``wait``, or ``visit`` while it has work.
    """
    if frame.f_code.co_name != "select":
        return False
    at: FrameType | None = frame
    for _ in range(_SELECT_DEPTH):
        at = None if at is None else at.f_back
        if at is not None and at.f_code.co_name == "wait":
            return True
    return False


def stack_of(frame: FrameType) -> Stack:
    """The calls of a thread within that of a subtask, innermost first.

    The thread must not run meanwhile: the caller holds the interpreter lock.
    """
    codes: list[CodeType] = []
    lines = array("l")
    operators: list[str] = []
    is_within = False  # Of an operator that was met: frames around it are a passage to it.
    at: FrameType | None = frame
    for _ in range(WALK_MAX):
        if at is None or at.f_code.co_filename == _LOOP:
            break
        code, operator = at.f_code, ""
        is_around = code.co_filename.startswith(AROUND_OPERATORS)
        if not is_around and code.co_argcount > 0 and code.co_varnames[0] == "self":
            owner = at.f_locals.get("self")
            if isinstance(owner, Operator) and (ctx := getattr(owner, "ctx", None)) is not None:
                operator = str(ctx.subtask.operator)
                is_within = True
        if not (is_around and is_within):
            codes.append(code)
            lines.append(at.f_lineno or code.co_firstlineno)
            operators.append(operator)
        at = at.f_back
    return Stack(tuple(codes), lines, tuple(operators))


def place_in(stack: Stack) -> Place | None:
    """The innermost operator of a stack, and the innermost line of the user's code in it."""
    within: tuple[str, str, int] | None = None
    for code, line, operator in zip(*stack, strict=True):
        if within is None and is_users_file(code.co_filename):
            within = code.co_name, code.co_filename, line
        if operator:
            return Place(OperatorId(operator), *(within or ("", "", 0)))
    return None


class _Table:
    """The frames of an answer, each once."""

    def __init__(self) -> None:
        self.frames: list[StackFrame] = []
        self._places: dict[StackFrame, int] = {}
        # By the code's id, since to compare codes is slow: the samples keep them alive.
        self._known: dict[tuple[int, int, str], int] = {}

    def positions(self, stack: Stack) -> tuple[int, ...]:
        """The positions of a sample's frames, outermost first, the innermost cut off."""
        positions: list[int] = []
        within = ""
        for code, line, operator in zip(*map(reversed, stack), strict=True):
            within = operator or within
            positions.append(self._position(code, line, within))
        return tuple(positions[:DEPTH_MAX])

    def _position(self, code: CodeType, line: int, operator: str) -> int:
        key = id(code), line, operator
        known = self._known.get(key)
        if known is not None:
            return known
        frame = StackFrame(
            operator,
            code.co_qualname[-NAME_LENGTH_MAX:],
            "/".join(PurePath(code.co_filename).parts[-FILE_PARTS:])[-NAME_LENGTH_MAX:],
            line,
        )
        at = self._places.setdefault(frame, len(self.frames))
        if at == len(self.frames):
            self.frames.append(frame)
        self._known[key] = at
        return at
