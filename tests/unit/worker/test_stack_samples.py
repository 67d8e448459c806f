"""Samples of a loop's whole stack: operators by name, lines, shares, and their bounds."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tests.builders import subtask
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.test_sampled_calls import BATCH, Calling, compiled, library, users
from tests.waiting import wait_until
from weir.ids import SubtaskId
from weir.protocol.inspection import STACKS_MAX, STACKS_SPAN_MS, StackFrame
from weir.worker.inspection import stack_samples
from weir.worker.inspection.stack_samples import (
    AROUND_OPERATORS,
    SLEEPING_LOOKS,
    StackSamples,
    is_asleep,
    stack_of,
)

MAP, OTHER = subtask("map-0"), subtask("other-0")


@contextmanager
def standing(call: Callable[[Callable[[], None]], object]) -> Iterator[int]:
    """A thread that stands within a call; its ident."""
    let_go, stands = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        let_go.wait()

    thread = threading.Thread(target=call, args=(stand,))
    thread.start()
    stands.wait()
    assert thread.ident is not None
    try:
        yield thread.ident
    finally:
        let_go.set()
        thread.join()


def loop(chain: SubtaskId | None = MAP) -> Any:
    return SimpleNamespace(calling=chain, calling_since_ns=1)


def at_work(stand: Callable[[], None]) -> None:
    run_once(lambda: Calling("map", stand).on_batch(BATCH, 0))


def in_weir(file: str) -> Any:
    """A function of the worker's own, around operators."""
    return compiled("def f(inner):\n    inner()\n", f"{AROUND_OPERATORS}/{file}")


run_once, step = in_weir("worker.py"), in_weir("subtask.py")


def sampled(samples: StackSamples, chain: SubtaskId = MAP) -> list[list[StackFrame]]:
    """The stacks that were met, each as often as it was."""
    taken = samples.taken(chain)
    return [
        [taken.frames[at] for at in stack.frames]
        for stack in taken.stacks
        for _ in range(stack.count)
    ]


def test_frames_are_named_by_operator_function_and_line_from_the_outside_in() -> None:
    """The loop around the subtask is left out, and the passage from one operator to the next."""
    passage = in_weir("chain_output.py")

    def chain(stand: Callable[[], None]) -> None:
        tail = Calling("tail", lambda: users(lambda: library(stand)))
        head = Calling("head", lambda: passage(lambda: tail.on_batch(BATCH, 0)))
        run_once(lambda: step(lambda: head.on_batch(BATCH, 0)))

    samples = StackSamples(ManualClock())
    with standing(chain) as ident:
        samples.look(loop(), ident)
    (stack,) = sampled(samples)
    named = [(f.operator, f.function, f.file, f.line) for f in stack if "test_" not in f.file]
    assert named[:4] == [
        ("head", "f", "operators/map.py", 2),
        ("tail", "f", "operators/map.py", 2),
        ("tail", "f", "jobs/orders.py", 2),
        ("tail", "f", "json/decoder.py", 2),
    ]
    files = {frame.file for frame in stack}
    assert not {"worker/worker.py", "worker/subtask.py", "worker/chain_output.py"} & files
    assert stack[-1].function == "Condition.wait"


def test_work_around_the_operators_is_shown_where_no_operator_is_within() -> None:
    samples = StackSamples(ManualClock())
    with standing(lambda stand: run_once(lambda: step(lambda: in_weir("gates.py")(stand)))) as at:
        samples.look(loop(), at)
    (stack,) = sampled(samples)
    files = [frame.file for frame in stack]
    assert "worker/worker.py" not in files
    assert [file for file in files if file.startswith("worker/") and "test" not in file] == [
        "worker/subtask.py",
        "worker/gates.py",
    ]
    assert {frame.operator for frame in stack} == {""}


def test_samples_are_counted_by_where_the_loop_was() -> None:
    samples = StackSamples(ManualClock())
    with standing(at_work) as ident:
        for chain, count in ((MAP, 3), (OTHER, 2), (None, 4)):
            for _ in range(count):
                samples.look(loop(chain), ident)
    taken = samples.taken(MAP)
    assert sum(stack.count for stack in taken.stacks) == 3
    assert (taken.others, taken.runtime, taken.waiting, taken.left_out) == (2, 4, 0, 0)


def test_a_loop_that_sleeps_at_its_sockets_waits_and_one_that_glances_at_them_does_not() -> None:
    met: list[bool] = []
    names: dict[str, Any] = {"look": lambda: met.append(is_asleep(sys._getframe(1)))}
    exec("def select(): look()\ndef wait(): select()\ndef visit(): select()\n", names)
    names["wait"]()
    names["visit"]()
    names["look"]()
    assert met == [True, False, False]


def test_a_look_at_a_loop_that_sleeps_counts_for_those_that_are_left_out() -> None:
    lock = threading.Lock()
    names: dict[str, Any] = {"sleep": lock.acquire}
    exec("def select(): sleep()\ndef wait(): select()\n", names)
    samples = StackSamples(ManualClock())
    with lock:
        thread = threading.Thread(target=names["wait"])
        thread.start()
        ident = thread.ident
        assert ident is not None
        wait_until(lambda: is_asleep(sys._current_frames()[ident]), "the loop sleeps")
        samples.look(loop(None), ident)
    thread.join()
    taken = samples.taken(MAP)
    assert (taken.runtime, taken.waiting) == (0, SLEEPING_LOOKS)


def test_samples_are_of_the_last_minute() -> None:
    clock = ManualClock()
    samples = StackSamples(clock)
    with standing(at_work) as ident:
        samples.look(loop(), ident)
        clock.ms += STACKS_SPAN_MS - 1_000
        samples.look(loop(), ident)
        clock.ms += 1_000
        assert len(sampled(samples)) == 2
        assert samples.taken(MAP).span_ms == STACKS_SPAN_MS
        clock.ms += 1
        assert len(sampled(samples)) == 1


def test_a_call_that_ended_during_the_look_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, busy = StackSamples(ManualClock()), loop()
    with standing(at_work) as ident:
        samples.look(busy, ident)
        assert len(sampled(samples)) == 1

        def ends(frame: FrameType) -> object:
            busy.calling_since_ns += 1
            return stack_of(frame)

        monkeypatch.setattr(stack_samples, "stack_of", ends)
        samples.look(busy, ident)
    assert len(sampled(samples)) == 1


def test_no_more_than_a_bounded_number_of_stacks_is_told_and_the_rest_is_counted() -> None:
    def line(number: int) -> Any:
        return compiled(f"def f(inner):\n{chr(10) * number}    inner()\n", "/srv/jobs/orders.py")

    samples = StackSamples(ManualClock())
    for number in range(STACKS_MAX + 7):
        with standing(lambda stand, number=number: run_once(lambda: line(number)(stand))) as ident:
            samples.look(loop(), ident)
    taken = samples.taken(MAP)
    assert (len(taken.stacks), taken.left_out) == (STACKS_MAX, 7)
