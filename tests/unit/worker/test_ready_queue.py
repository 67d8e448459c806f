"""The ready queue against a plain model: every subtask once a round, every timer at its time."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from weir.worker.ready_queue import ReadyQueue
from weir.worker.subtask import Subtask

NAMES = ("a", "b", "c")  # In the place of subtasks, of which the queue knows nothing.

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(NAMES)),
        st.tuples(st.just("take")),
        st.tuples(st.just("wait"), st.sampled_from(NAMES), st.none() | st.integers(0, 30)),
        st.tuples(st.just("wake"), st.integers(0, 30)),  # The clock may go back as well.
    ),
    max_size=60,
)


def subtask(name: str) -> Subtask:
    return cast(Subtask, name)


@given(steps)
def test_it_does_as_a_list_and_a_table_of_timers_do(done: list[tuple[Any, ...]]) -> None:
    queue = ReadyQueue()
    ready: list[str] = []
    timers: dict[str, int] = {}
    for kind, *given_ in done:
        match kind, given_:
            case "add", [name]:
                queue.add(subtask(name))
                ready += [name] if name not in ready else []
            case "take", []:
                assert queue.take() == ready
                ready.clear()
            case "wait", [name, None]:
                queue.wait(subtask(name), None)
                timers.pop(name, None)
            case "wait", [name, at_ms]:
                queue.wait(subtask(name), at_ms)
                timers[name] = at_ms
            case "wake", [now_ms]:
                queue.wake(now_ms)
                due = {name for name, at_ms in timers.items() if at_ms <= now_ms}
                for name in due:
                    del timers[name]
                woken = queue.take()
                assert woken[: len(ready)] == ready
                assert set(woken) == {*ready, *due}
                assert len(woken) == len(set(woken))
                ready.clear()
        assert bool(queue) is bool(ready)
        assert queue.next_timer_ms() == min(timers.values(), default=None)


def test_a_timer_that_moves_on_with_each_record_takes_one_entry() -> None:
    queue = ReadyQueue()
    for at_ms in range(1_000, 2_000):
        queue.wait(subtask("a"), at_ms)
    assert len(queue._heap) == 1
    assert queue.next_timer_ms() == 1_999


def test_those_with_the_same_time_enter_in_the_order_in_which_they_began_to_wait() -> None:
    queue = ReadyQueue()
    for name in ("b", "c", "a"):
        queue.wait(subtask(name), 5)
    queue.wake(5)
    assert queue.take() == ["b", "c", "a"]
