"""The database's clock is moved, and the control plane's goes on; corrected once for all."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from controlplane.base import clock
from controlplane.base.clock import SLEW, TOLERANCE_S, VOUCHES_AFTER_S, _Watch
from controlplane.base.models import ClockCorrection
from tests.database.controlplane.moved_clock import HOUR_S, MovedClock

pytestmark = pytest.mark.django_db(transaction=True)

MOVES = [pytest.param(-HOUR_S, id="back"), pytest.param(HOUR_S, id="ahead")]
MOMENT = timedelta(seconds=TOLERANCE_S)  # Longer than a test takes between two readings.


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    return MovedClock(monkeypatch)


def raw() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {clock._RAW}")
        (value,) = cursor.fetchone()
    assert isinstance(value, datetime)
    return value


def goes_on(before: datetime) -> bool:
    return timedelta(0) <= clock.now() - before < MOMENT


@pytest.mark.parametrize("by_s", MOVES)
def test_the_clock_goes_on_though_the_databases_is_moved(database: MovedClock, by_s: float) -> None:
    before = clock.now()
    database.move(by_s)
    assert abs((raw() - before).total_seconds() - by_s) < TOLERANCE_S
    assert goes_on(before)
    assert database.corrections == 1
    assert goes_on(before)
    assert database.corrections == 1
    database.move(-by_s)
    assert goes_on(before)
    assert database.corrections == 2


@pytest.mark.parametrize("by_s", MOVES)
def test_a_query_that_asks_for_the_time_gets_the_same(database: MovedClock, by_s: float) -> None:
    before = clock.now()
    database.move(by_s)
    clock.look()
    seen = ClockCorrection.objects.values_list(clock.DatabaseNow()).get()[0]
    assert timedelta(0) <= seen - before < MOMENT


@pytest.mark.parametrize("by_s", MOVES)
def test_of_several_processes_one_corrects(database: MovedClock, by_s: float) -> None:
    before = clock.now()
    others = [_Watch() for _ in range(3)]
    for other in others:
        other.read()
    database.move(by_s)
    for other in others:
        with database.within(other):
            assert goes_on(before)
            clock.look()
    assert goes_on(before)
    assert database.corrections == 1


@pytest.mark.parametrize("by_s", MOVES)
def test_of_several_processes_that_notice_at_the_same_time_one_corrects(
    database: MovedClock, by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = clock.now()
    processes = [_Watch() for _ in range(4)]
    for process in processes:
        process.read()
    database.move(by_s)
    everybody_noticed = threading.Barrier(len(processes))
    correct, noticed = clock._correct, []

    def together(*of: Any) -> None:
        noticed.append(of)
        everybody_noticed.wait(10)
        correct(*of)

    monkeypatch.setattr(clock, "_correct", together)
    seen: list[datetime] = []

    def look(process: _Watch) -> Callable[[], None]:
        def run() -> None:
            try:
                seen.append(process.read().now)
            finally:
                connection.close()

        return run

    threads = [threading.Thread(target=look(process)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(noticed) == len(processes)
    assert len(seen) == len(processes)
    assert all(timedelta(0) <= moment - before < MOMENT for moment in seen)
    assert database.corrections == 1


@pytest.mark.parametrize("by_s", MOVES)
def test_a_process_that_just_began_takes_the_clock_as_it_is(
    database: MovedClock, by_s: float
) -> None:
    """It read the moved clock before the others had noticed, and leaves the matter to them."""
    before = clock.now()
    database.move(by_s)
    fresh = _Watch()
    assert abs((fresh.read().now - before).total_seconds() - by_s) < TOLERANCE_S
    assert database.corrections == 0
    assert goes_on(before)
    assert database.corrections == 1
    for _ in range(3):
        with database.within(fresh):
            assert goes_on(before)
        assert goes_on(before)
    assert database.corrections == 1


@pytest.mark.parametrize("by_s", [-1.0, 1.0])
def test_a_second_is_no_move(database: MovedClock, by_s: float) -> None:
    clock.now()
    database.move(by_s)
    clock.now()
    assert database.corrections == 0


def test_a_process_that_stood_still_has_seen_no_move(database: MovedClock) -> None:
    """By a stop signal, or collecting garbage: its own clock went on."""
    before = clock.now()
    database.pass_time(HOUR_S)
    assert abs((clock.now() - before).total_seconds() - HOUR_S) < TOLERANCE_S
    assert database.corrections == 0


def test_a_slow_query_is_no_move(database: MovedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.now()
    own_s, readings = clock.own_s, [0.0]

    def slow() -> float:
        readings[0] += 30  # Between before and after the query.
        return own_s() + readings[0]

    database.move(50)  # At the end of it the database's clock was read.
    monkeypatch.setattr(clock, "own_s", slow)
    clock.now()
    assert database.corrections == 0


def test_a_machine_that_was_paused_corrects_nothing_where_others_were_not(
    database: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    paused, other = clock._watch, _Watch()
    before = clock.now()
    other.read()
    with database.within(other):
        database.pass_time(HOUR_S)
        clock.look()
        assert other.vouches
    database.own_moved_s -= HOUR_S  # Its clock stood still.
    with database.within(paused):
        assert abs((clock.now() - before).total_seconds() - HOUR_S) < TOLERANCE_S
    assert "its machine was paused" in caplog.text
    assert database.corrections == 0


def test_where_all_machines_were_paused_the_time_did_not_pass(database: MovedClock) -> None:
    database.pass_time(VOUCHES_AFTER_S + 1)
    clock.look()
    database.pass_time(VOUCHES_AFTER_S + 1)
    clock.look()
    before = clock.now()
    database.move(HOUR_S)
    assert goes_on(before)
    assert database.corrections == 1


def test_a_process_that_just_began_leaves_no_mark(database: MovedClock) -> None:
    """A mark from behind a move would hide it from those who saw the clock before."""
    before = clock.now()
    database.move(HOUR_S)
    with database.within(_Watch()):
        for _ in range(3):
            clock.look()
    assert goes_on(before)
    assert database.corrections == 1


@pytest.mark.parametrize("by_s", MOVES)
def test_a_correction_outlives_the_transaction_in_which_it_was_needed(
    database: MovedClock, by_s: float
) -> None:
    before = clock.now()
    with transaction.atomic():
        ClockCorrection.objects.first()
        database.move(by_s)
        assert goes_on(before)
        transaction.set_rollback(True)
    database.restart()
    assert goes_on(before)
    assert database.corrections == 1


@pytest.mark.parametrize("by_s", MOVES)
def test_the_clock_comes_back_to_the_databases_by_and_by(database: MovedClock, by_s: float) -> None:
    clock.now()
    database.move(by_s)
    clock.now()
    for hours in range(1, 21):
        before = clock.now()
        database.pass_time(HOUR_S)
        passed_s = (clock.now() - before).total_seconds()
        assert 0.94 * HOUR_S < passed_s < 1.06 * HOUR_S
        left_s = (clock.now() - raw()).total_seconds()
        assert abs(left_s + by_s * (1 - hours * SLEW)) < TOLERANCE_S + 1
    assert abs((clock.now() - raw()).total_seconds()) < TOLERANCE_S + 1
    assert database.corrections == 1
