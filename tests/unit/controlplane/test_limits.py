"""Counters of rates and bounds on what is open."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError
from redis.exceptions import TimeoutError as RedisTimeoutError

from controlplane.base.limits import counters
from controlplane.base.limits.admission import Admission, TooManyOpen
from controlplane.base.limits.rates import Rate
from controlplane.base.server_losses import Pause
from controlplane.base.threads import Unavailable
from tests.waiting import wait_until

HOURLY = Rate(3, 3_600)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty counters, in the middle of an hour."""
    cache.clear()
    counters._local.clear()
    monkeypatch.setattr(counters.time, "time", lambda: 1_800.0)
    monkeypatch.setattr(counters, "redis_pause", Pause(60.0))
    yield
    cache.clear()


@pytest.mark.parametrize(
    ("text", "rate"),
    [("20/min", Rate(20, 60)), ("1/s", Rate(1, 1)), ("50/hour", Rate(50, 3_600))],
)
def test_a_rate_is_read(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "20", "0/min", "-1/min", "20/fortnight", "20 / min", "x/min"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate; give for example 20/min"):
        Rate.parse(text)


def test_a_count_goes_over_its_rate_and_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [counters.take("test", "mara", HOURLY) for _ in range(5)]
    assert [one.is_over for one in taken] == [False, False, False, True, True]
    assert [one.is_first_over for one in taken] == [False, False, False, True, False]
    assert taken[0].left_s == 1_800
    assert not counters.take("test", "noor", HOURLY).is_over
    assert not counters.take("other", "mara", HOURLY).is_over
    monkeypatch.setattr(counters.time, "time", lambda: 3_600.0)
    assert not counters.take("test", "mara", HOURLY).is_over


def test_what_is_given_back_does_not_count() -> None:
    for _ in range(10):
        taken = counters.take("test", "mara", HOURLY)
        assert not taken.is_over
        counters.give_back(taken)


def test_of_many_at_once_as_many_pass_as_may() -> None:
    barrier, passed = threading.Barrier(20), []

    def run() -> None:
        barrier.wait(10)
        passed.append(not counters.take("test", "mara", HOURLY).is_over)

    threads = [threading.Thread(target=run) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(passed), sum(passed)) == (20, 3)


@pytest.mark.parametrize("error", [RedisConnectionError("away"), OutOfMemoryError("full")])
def test_without_redis_the_process_counts_for_itself(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    for name in ("add", "incr", "decr"):
        monkeypatch.setattr(cache, name, fail)
    taken = [counters.take("test", "mara", HOURLY) for _ in range(4)]
    assert [one.is_over for one in taken] == [False, False, False, True]
    counters.give_back(taken[-1])
    counters.give_back(taken[-2])
    assert not counters.take("test", "mara", HOURLY).is_over


def test_a_redis_that_failed_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def fail(key: str, *_: Any, **__: Any) -> None:
        asked.append(key)
        raise RedisTimeoutError("no answer")

    monkeypatch.setattr(cache, "add", fail)
    for _ in range(3):
        counters.take("test", "mara", HOURLY)
    assert len(asked) == 1
    monkeypatch.setattr(counters, "redis_pause", Pause(60.0))  # It has passed.
    assert counters.take("test", "mara", HOURLY).is_over
    assert len(asked) == 2


def test_keys_hide_their_subject_and_have_one_length() -> None:
    keys = {counters.hashed("throttle", text) for text in ("203.0.113.9", "x" * 10_000, "mara")}
    assert {len(key) for key in keys} == {len("throttle:") + 40}
    assert not any("203" in key or "mara" in key for key in keys)


def test_a_pause_lasts_from_a_failure_on_for_its_seconds() -> None:
    pause = Pause(0.05)
    assert not pause.lasts
    pause.begin()
    assert pause.lasts
    wait_until(lambda: not pause.lasts, "the pause is over")
    assert not Pause(0.0).lasts


# Open things -----------------------------------------------------------------------------------


def test_each_holder_and_all_have_a_bound() -> None:
    streams = Admission("event streams", 5, {"account": 2, "address": 3})
    with ExitStack() as held:
        for account in ("mara", "mara", "noor"):
            held.enter_context(streams.admit(account=account, address="a"))
        with (
            pytest.raises(TooManyOpen, match="this account has 2 event streams open"),
            streams.admit(account="mara", address="b"),
        ):
            pass
        with (
            pytest.raises(TooManyOpen, match="this address has 3"),
            streams.admit(account="other", address="a"),
        ):
            pass
        for account in ("one", "two"):
            held.enter_context(streams.admit(account=account, address="b"))
        with (
            pytest.raises(Unavailable, match="5 event streams are open already"),
            streams.admit(account="three", address="c"),
        ):
            pass
        assert streams.count == 5
    assert streams.count == 0
    assert not streams._held
    with streams.admit(account="mara", address="a"):
        assert streams.count == 1
