"""The calls in which a busy loop is met, from samples of its stack by another thread.

A subtask's busy share says that its chain is slow, not which operator of the chain, nor which line.
So a thread looks at the loop's stack twenty times a second. Where the loop is in a subtask's call,
the innermost operator on the stack is at work, and the innermost frame of the user's code inside of
it is the line that is. A call into C shows as the line that made it.

Samples are some five seconds old at most. Looks must not come at equal intervals, or work that
repeats as often would be met at one place only.
"""

import sys
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from weir.common.clock import Clock
from weir.common.tracebacks import is_users_file
from weir.ids import OperatorId, SubtaskId
from weir.operators.base import Operator
from weir.protocol.messages import SampledCall
from weir.worker.stalls import Calls

KEPT_NS = 5_000_000_000
SAMPLES_MAX = 128
SAMPLES_MIN = 5  # Of a subtask; fewer say nothing of where it works.
CALLS_MAX = 3
DEPTH_MAX = 200  # Frames; a chain of many operators has some five each.
# Around the operators. Its frames last, and so would all that a look at their variables holds.
AROUND_OPERATORS = str(Path(__file__).parent)


class Place(NamedTuple):
    """The operator at work, and the line of the user's code in it."""

    operator: OperatorId
    function: str
    file: str
    line: int


class CallSamples:
    """The recent samples of one loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[int, SubtaskId, Place]] = deque(maxlen=SAMPLES_MAX)

    def look(self, loop: Calls, loop_thread: int) -> None:
        """Take one sample, if the loop is in a call of an operator."""
        since_ns, chain = loop.calling_since_ns, loop.calling
        if chain is None:
            return
        frame = sys._current_frames().get(loop_thread)
        place = None if frame is None else place_of(frame)
        if place is None or loop.calling is None or loop.calling_since_ns != since_ns:
            return  # It is in Weir's own code, or the call ended meanwhile.
        self._samples.append((self._clock.monotonic_ns(), chain, place))

    def calls(self) -> Mapping[SubtaskId, tuple[SampledCall, ...]]:
        """The places of each subtask that was met often enough, those of most samples first."""
        oldest_ns = self._clock.monotonic_ns() - KEPT_NS
        places: dict[SubtaskId, Counter[Place]] = {}
        for at_ns, chain, place in list(self._samples):
            if at_ns >= oldest_ns:
                places.setdefault(chain, Counter())[place] += 1
        return {
            chain: tuple(
                SampledCall(*place, share=count / counts.total())
                for place, count in counts.most_common(CALLS_MAX)
            )
            for chain, counts in places.items()
            if counts.total() >= SAMPLES_MIN
        }


def place_of(frame: FrameType) -> Place | None:
    """The operator and the user's line in which a thread is; None: no operator is at work.

    The thread must not run meanwhile: the caller holds the interpreter lock.
    """
    line: tuple[str, str, int] | None = None
    at: FrameType | None = frame
    for _ in range(DEPTH_MAX):
        if at is None:
            return None
        code = at.f_code
        if line is None and is_users_file(code.co_filename):
            line = code.co_name, code.co_filename, at.f_lineno or 0
        is_method = code.co_argcount > 0 and code.co_varnames[0] == "self"
        if is_method and not code.co_filename.startswith(AROUND_OPERATORS):
            owner = at.f_locals.get("self")
            if isinstance(owner, Operator) and (ctx := getattr(owner, "ctx", None)) is not None:
                return Place(OperatorId(ctx.subtask.operator), *(line or ("", "", 0)))
        at = at.f_back
    return None
