"""A process that holds more than its limit: what it gives back, and what it says at its end."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.subtask_harness import ATTEMPT, Reports
from weir.ids import OperatorId, SubtaskId
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged
from weir.protocol.slot_memory import MemoryLimit, MemorySource
from weir.state.backends.base import Held
from weir.worker.inbox import ThreadInbox
from weir.worker.memory.holders import Holder
from weir.worker.memory.watch import LOOK_INTERVAL_NS, MemoryWatch
from weir.worker.ports import Call

LIMIT = 400_000_000
FIRST = SubtaskId(OperatorId("source"), 3)
TOTALS = SubtaskId(OperatorId("totals"), 3)


class Ended(Exception):
    """The process would be gone."""


class Slot:
    """A worker process with a loop that has time, and figures for its memory."""

    def __init__(self, *resident: int, source: MemorySource = MemorySource.SETTING) -> None:
        self.calling: SubtaskId | None = None
        self.known: list[Holder] = []
        self.readings = [100_000_000, *resident]
        self.calls: list[str] = []
        self.clock, self.reports = ManualClock(), Reports()
        self.inbox = ThreadInbox(self._run)
        self.source = source

    def _run(self) -> None:
        """Wake the loop, which does at once what it is told."""
        for item in self.inbox.drain():
            assert isinstance(item, Call)
            item.function()

    def held_bytes(self) -> int:
        self.calls.append("read")
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def give_back(self) -> None:
        self.calls.append("loop gives back")

    def holders(self) -> Sequence[Holder]:
        return self.known

    def end(self) -> NoReturn:
        self.calls.append("end")
        raise Ended

    def watch(self, limit: int | None = LIMIT) -> MemoryWatch:
        watch = MemoryWatch(
            self,
            None if limit is None else MemoryLimit(limit, self.source),
            ATTEMPT,
            FIRST,
            held_bytes=self.held_bytes,
            give_back=lambda: self.calls.append("give back"),
            inbox=self.inbox,
            clock=self.clock,
            reporter=self.reports,
            end=self.end,
        )
        self.calls.clear()
        return watch

    def failure(self) -> SubtaskChanged:
        (report,) = self.reports
        assert isinstance(report, SubtaskChanged)
        return report


def test_below_the_limit_nothing_is_done_and_reading_is_rare() -> None:
    slot = Slot(LIMIT)
    watch = slot.watch()
    for _ in range(3):
        watch.look()
    assert slot.calls == ["read"]
    slot.clock.ms += LOOK_INTERVAL_NS // 1_000_000
    watch.look()
    assert slot.calls == ["read", "read"]


def test_without_a_limit_memory_is_not_read() -> None:
    slot = Slot(1 << 60)
    slot.watch(None).look()
    assert slot.calls == []


def test_a_process_that_can_give_back_enough_goes_on() -> None:
    slot = Slot(LIMIT + 1, LIMIT)
    slot.watch().look()
    assert slot.calls == ["read", "loop gives back", "give back", "read"]
    assert slot.reports == []


def test_a_process_that_cannot_names_what_it_holds_and_ends(
    capfd: pytest.CaptureFixture[str],
) -> None:
    slot = Slot(LIMIT + 1, LIMIT + 50_000_000)
    slot.known = [
        Holder(TOTALS, TOTALS, "seen", Held(1_200, 310_000_000)),
        Holder(FIRST, FIRST, "offsets", Held(1, LIMIT // 20)),
        Holder(FIRST, FIRST, "small", Held(9_999, LIMIT // 20 - 1)),
    ]
    with pytest.raises(Ended):
        slot.watch().look()
    assert slot.calls[-1] == "end"
    failed = slot.failure()
    assert (failed.chain, failed.status) == (TOTALS, SubtaskStatus.FAILED)
    assert failed.cause.startswith(
        "the worker process of slot 3 holds 450.0 MB of memory, more than its limit of 400.0 MB "
        "(taskmanager.memory.process.size). The largest states in memory: 'seen' of totals-3, "
        "1,200 entries, about 310.0 MB; 'offsets' of source-3, 1 entry, about 20.0 MB. Keep state "
        "on local disk (state.backend.type: rocksdb)"
    )
    assert failed.details["place"] == "the memory of slot 3"
    assert "restarts_help" not in failed.details
    assert failed.cause in capfd.readouterr().err


def test_the_limit_of_a_cgroup_says_how_to_set_another(capfd: Any) -> None:
    slot = Slot(LIMIT + 1, source=MemorySource.CGROUP)
    slot.calling = TOTALS
    slot.known = [Holder(FIRST, FIRST, "small", Held(9_999, LIMIT // 20 - 1))]
    with pytest.raises(Ended):
        slot.watch().look()
    failed = slot.failure()
    assert failed.chain == TOTALS  # No state is large, but the call is known.
    assert "(its share of the cgroup's; taskmanager.memory.process.size sets another). " in (
        failed.cause
    )
    assert "No state in memory takes much of it" in failed.cause


def test_a_limit_below_what_the_program_takes_is_no_cause_to_restart(capfd: Any) -> None:
    slot = Slot()
    slot.readings = [LIMIT + 1]
    with pytest.raises(Ended):
        slot.watch().look()
    failed = slot.failure()
    assert failed.details == {"restarts_help": False}
    assert "held 400.0 MB before its first record" in failed.cause


def test_values_that_cannot_be_sized_do_not_keep_the_process_from_its_end(capfd: Any) -> None:
    slot = Slot(LIMIT + 1)

    def holders() -> Sequence[Holder]:
        raise RuntimeError("dictionary changed size during iteration")

    slot.holders = holders  # type: ignore[method-assign]
    with pytest.raises(Ended):
        slot.watch().look()
    assert "cannot be told: RuntimeError('dictionary changed" in slot.failure().cause
    assert slot.failure().chain == FIRST


def test_a_share_of_a_cgroup_below_what_the_program_takes_ends_nothing() -> None:
    slot = Slot(source=MemorySource.CGROUP)
    slot.readings = [LIMIT + 1]
    slot.watch().look()
    assert slot.calls == []
    slot.readings = [LIMIT, LIMIT + 1]
    with pytest.raises(Ended):
        slot.watch().look()


def test_a_loop_in_a_long_call_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr("weir.worker.memory.watch.LOOP_POLL_S", 0.001)
    monkeypatch.setattr("weir.worker.memory.watch.LOOP_TIMEOUT_S", 0.003)
    slot = Slot(LIMIT + 1)
    slot.inbox = ThreadInbox(lambda: None)
    with pytest.raises(Ended):
        slot.watch().look()
    assert slot.calls == ["read"] * 4 + ["give back", "read", "end"]
    assert slot.inbox  # It is still to be done.


def test_a_loop_that_takes_much_more_meanwhile_is_not_waited_for_long(capfd: Any) -> None:
    slot = Slot(LIMIT + 1, LIMIT * 11 // 10, LIMIT * 11 // 10 + 1)
    slot.inbox = ThreadInbox(lambda: None)
    with pytest.raises(Ended):
        slot.watch().look()
    assert slot.calls == ["read"] * 3 + ["give back", "read", "end"]


def test_a_loop_that_is_about_to_give_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.worker.memory.watch.LOOP_POLL_S", 10.0)
    monkeypatch.setattr("weir.worker.memory.watch.LOOP_TIMEOUT_S", 10.0)
    slot = Slot(LIMIT + 1, LIMIT)
    timers: list[threading.Timer] = []

    def later(run: Callable[[], None]) -> None:
        timers.append(threading.Timer(0.05, run))
        timers[-1].start()

    run = slot._run
    slot.inbox = ThreadInbox(lambda: later(run))
    slot.watch().look()
    assert slot.calls == ["read", "loop gives back", "give back", "read"]
    timers[0].join()
