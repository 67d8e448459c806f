"""Places where a busy loop works: the operator of its chain and the user's line in it."""

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import subtask
from tests.unit.operators.operator_harness import ManualClock
from weir.common.batch import Batch
from weir.ids import OperatorId, SubtaskId
from weir.operators.base import Operator
from weir.protocol.messages import SampledCall
from weir.worker.chain_output import Targets
from weir.worker.inspection.stack_samples import (
    AROUND_OPERATORS,
    CALLS_MAX,
    CALLS_SAMPLES_MIN,
    CALLS_SPAN_NS,
    Place,
    Sample,
    StackSamples,
    place_in,
    stack_of,
)

MAP = subtask("map-0")
BATCH = Batch.of_rows([1])


def compiled(source: str, file: str) -> Any:
    """The function ``f`` of a source, as if it stood in this file."""
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)
    return names["f"]


# The user's function, and what a library and Weir's own operators do around it.
users = compiled("def f(inner):\n    inner()\n", "/srv/jobs/orders.py")
library = compiled("def f(inner):\n    inner()\n", "/usr/lib/python3.11/json/decoder.py")
own_batch = compiled(
    "def f(self, batch, input_index):\n    self.call()\n    self.targets.emit(batch)\n",
    "/opt/weir/operators/map.py",
)


class Calling(Operator):
    """Calls something, and passes batches on."""

    def __init__(self, uid: str, call: Callable[[], object], behind: "Calling | None" = None):
        self.ctx = SimpleNamespace(subtask=SubtaskId(OperatorId(uid), 0))  # type: ignore[assignment]
        self.call = call
        self.targets = Targets([] if behind is None else [(behind, 0)])

    on_batch = own_batch


def met_in(chain: Callable[[Callable[[], None]], Calling]) -> list[Place | None]:
    """The places in which the calls of a chain are met, from its head on."""
    places: list[Place | None] = []
    meet = compiled(
        "def f(place, getframe, places):\n    return lambda: places.append(place(getframe(1)))\n",
        f"{AROUND_OPERATORS}/subtask.py",
    )(lambda frame: place_in(stack_of(frame)), sys._getframe, places)
    chain(meet).on_batch(BATCH, 0)
    return places


def test_the_innermost_operator_and_the_users_line_in_it_are_met() -> None:
    def chain(meet: Callable[[], None]) -> Calling:
        behind = compiled(
            "def f(users, meet):\n    return lambda: users(meet)\n", "/x/weir/wire/a.py"
        )
        return Calling("head", behind(users, meet), Calling("tail", behind(users, meet)))

    assert met_in(chain) == [
        Place(OperatorId("head"), "f", "/srv/jobs/orders.py", 2),
        Place(OperatorId("tail"), "f", "/srv/jobs/orders.py", 2),
    ]


def test_a_library_belongs_to_the_users_line_that_calls_it() -> None:
    partial = compiled(
        "def f(users, library, meet):\n    return lambda: users(lambda: library(meet))\n",
        "/x/weir/wire/a.py",
    )
    (place,) = met_in(lambda meet: Calling("head", partial(users, library, meet)))
    assert place == Place(OperatorId("head"), "f", "/srv/jobs/orders.py", 2)


def test_an_operator_behind_the_users_function_has_no_line_of_it() -> None:
    """A function that emits calls what is chained behind it."""
    partial = compiled(
        "def f(users, tail, batch):\n    return lambda: users(lambda: tail.on_batch(batch, 0))\n",
        "/x/weir/wire/a.py",
    )
    (place,) = met_in(lambda meet: Calling("head", partial(users, Calling("tail", meet), BATCH)))
    assert place == Place(OperatorId("tail"), "", "", 0)


def test_no_operator_is_met_outside_of_one() -> None:
    assert place_in(stack_of(sys._getframe())) is None


class Loop:
    """A loop's notes, with a thread that stands in an operator's call."""

    def __init__(self) -> None:
        self.calling: SubtaskId | None = MAP
        self.calling_since_ns = 1
        self.clock = ManualClock()
        self.samples = StackSamples(self.clock)
        self._let_go, self._stands = threading.Event(), threading.Event()
        operator = Calling("map", self._stand)
        self._thread = threading.Thread(target=lambda: operator.on_batch(BATCH, 0))

    def _stand(self) -> None:
        self._stands.set()
        self._let_go.wait()

    def __enter__(self) -> "Loop":
        self._thread.start()
        self._stands.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()
        self._thread.join()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.ms += 50
            self.samples.look(self, self._thread.ident or 0)


def test_calls_are_told_of_a_subtask_that_was_met_often_enough() -> None:
    with Loop() as loop:
        loop.look(CALLS_SAMPLES_MIN - 1)
        assert loop.samples.calls() == {}
        loop.look()
        ((chain, (call,)),) = loop.samples.calls().items()
        assert (chain, call.operator, call.function, call.share) == (MAP, "map", "_stand", 1.0)
        assert call.file == __file__
        loop.clock.ms += CALLS_SPAN_NS // 1_000_000  # It rests: the samples are too old.
        assert loop.samples.calls() == {}


@pytest.mark.parametrize("calling", [None, MAP])
def test_a_loop_in_no_call_or_in_the_next_one_is_not_met(calling: SubtaskId | None) -> None:
    class Moved(Loop):
        @property
        def calling_since_ns(self) -> int:
            self.reads += 1
            return self.reads

        @calling_since_ns.setter
        def calling_since_ns(self, value: int) -> None:
            self.reads = value

    with Moved() if calling else Loop() as loop:
        loop.calling = calling
        loop.look(2 * CALLS_SAMPLES_MIN)
        assert loop.samples.calls() == {}


def test_the_places_with_most_samples_come_first_and_few_are_told() -> None:
    clock = ManualClock()
    samples, now_ns = StackSamples(clock), clock.monotonic_ns()
    for line, count in enumerate((1, 5, 2, 2), start=1):
        place = Place(OperatorId("map"), "parse", "orders.py", line)
        samples._samples.extend([Sample(now_ns, MAP, False, None, place)] * count)
    calls = samples.calls()[MAP]
    assert len(calls) == CALLS_MAX
    assert calls[0] == SampledCall(OperatorId("map"), "parse", "orders.py", 2, 0.5)
    assert [call.line for call in calls[1:]] == [3, 4]
