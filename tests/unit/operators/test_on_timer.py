"""Timers: what one that fires may do to the others, and which times are allowed."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.unit.operators.operator_harness import Harness
from weir.datastream.keys import selector_of
from weir.errors import UserError
from weir.operators.functions import KeyedProcessFunction
from weir.operators.keyed import KeyedProcessOperator

FIRST = selector_of(lambda record: record[0])
DOMAINS = ["event_time", "processing_time"]


class Acting(KeyedProcessFunction):
    """Registers each record's timer, does what it is told in every timer, and reports it."""

    def __init__(self, domain: str, act: Callable[[Any, int, Any], Any]) -> None:
        self.domain = domain
        self.act = act

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.register(ctx, value[1])
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp
        self.act(self, timestamp, ctx)

    def register(self, ctx: Any, timestamp: Any) -> None:
        getattr(ctx.timer_service(), f"register_{self.domain}_timer")(timestamp)

    def delete(self, ctx: Any, timestamp: Any) -> None:
        getattr(ctx.timer_service(), f"delete_{self.domain}_timer")(timestamp)


def fired(domain: str, act: Callable[[Any, int, Any], Any], timers: list[Any]) -> list[Any]:
    """The timers that fire, in order, when all are due at once."""
    harness = Harness(partial(KeyedProcessOperator, FIRST, Acting(domain, act)))
    harness.rows(timers)
    events = harness.watermark(100) if domain == "event_time" else harness.clock_to(10**7)
    return [row for event in events if event[0] == "rows" for row in event[1]]


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_due_timer_that_another_deletes_does_not_fire(domain: str) -> None:
    def act(function: Acting, timestamp: int, ctx: Any) -> None:
        if timestamp == 10:
            function.delete(ctx, 20)

    made = fired(domain, act, [("a", 10), ("a", 20), ("b", 20), ("a", 30)])
    assert made == [("a", 10), ("b", 20), ("a", 30)]


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_due_timer_that_another_registers_again_fires_once(domain: str) -> None:
    def act(function: Acting, timestamp: int, ctx: Any) -> None:
        if timestamp == 10:
            function.register(ctx, 20)

    assert fired(domain, act, [("a", 10), ("a", 20)]) == [("a", 10), ("a", 20)]


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_timer_that_another_registers_fires_in_its_place(domain: str) -> None:
    def act(function: Acting, timestamp: int, ctx: Any) -> None:
        if timestamp == 10:
            function.register(ctx, 15)
            function.register(ctx, 5)

    made = fired(domain, act, [("a", 10), ("b", 20)])
    assert made == [("a", 10), ("a", 5), ("a", 15), ("b", 20)]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    "timestamp", [1.5, float("nan"), 2**63, -(2**63) - 1, np.uint64(2**63), "10", True, None]
)
def test_what_is_no_timestamp_is_refused_with_advice(domain: str, timestamp: Any) -> None:
    class Failing(Acting):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            getattr(self, value[1])(ctx, timestamp)
            yield from ()

    harness = Harness(partial(KeyedProcessOperator, FIRST, Failing(domain, lambda *_: None)))
    for does in ("register", "delete"):
        with pytest.raises(
            UserError, match=rf"'op' {does}s a timer at .* must be an int"
        ) as failed:
            harness.rows([("a", does)])
        assert repr(timestamp) in str(failed.value)
    assert not any(handle.name == "timers" for handle in harness.snapshot())


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("timestamp", [np.int64(10), np.uint8(10), np.int16(10)])
def test_an_integer_of_numpy_becomes_an_int(domain: str, timestamp: Any) -> None:
    before = Harness(partial(KeyedProcessOperator, FIRST, Acting(domain, lambda *_: None)))
    before.rows([("a", timestamp), ("a", 10), ("b", timestamp)])
    after = Harness(
        partial(KeyedProcessOperator, FIRST, Acting(domain, lambda *_: None)),
        restored=before.snapshot(),
    )
    events = after.watermark(10) if domain == "event_time" else after.clock_to(10**7)
    assert sorted(events[0][1]) == [("a", 10), ("b", 10)]
    assert type(events[0][1][0][1]) is int


def test_timers_at_both_ends_of_time_fire_and_are_stored() -> None:
    first, last = -(2**63), 2**63 - 1
    harness = Harness(partial(KeyedProcessOperator, FIRST, Acting("event_time", lambda *_: None)))
    harness.rows([("a", last), ("a", first)])
    assert harness.snapshot()
    assert harness.watermark(last)[0] == ("rows", [("a", first), ("a", last)])
