"""Worker processes: data connections between two, heartbeats, and how they end."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.worker.fake_master import (
    FakeMaster,
    await_gone,
    fake_master,
    program,
    supervisor,
)
from tests.process.worker.standin import exchange_graph
from tests.waiting import wait_until
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, OperatorId
from weir.protocol.deployment import (
    SlotHeartbeat,
    StopProcess,
    WorkerExited,
    WorkerHeartbeat,
)
from weir.protocol.elements import CheckpointBarrier
from weir.protocol.inspection import Inspected, InspectionKind, InspectSubtask
from weir.protocol.messages import SubtaskChanged, TriggerCheckpoint
from weir.worker.inbox import ThreadInbox
from weir.worker.ports import Call, InboxItem
from weir.worker.process import EXIT_FAILED, EXIT_MASTER_LOST, SnapshotWorker


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with fake_master() as master:
        yield master


def test_workers_of_two_slots_exchange_elements(master: FakeMaster) -> None:
    """The second slot's supervisor is a spare, number 5, that plays slot 1 of the plan."""
    graph = exchange_graph(2)
    with supervisor(master, 0), supervisor(master, 5):
        workers = master.deploy_workers(program(graph), 0, 5)
        told: dict[int, int] = {}
        while len(told) < 4:
            _, changed = master.expect(SubtaskChanged)
            told[changed.details["channel"]] = changed.details["watermark"]
        channels = ExecutionGraph(graph).channels
        assert told == {channel.id: 100 + channel.sender.index for channel in channels}

        for worker, _ in workers:
            master.send(worker, StopProcess(AttemptNumber(1)))
        for _ in workers:
            assert master.expect(WorkerExited)[1].exit_code == 0
        details = [m.details for _, m in master.unseen if isinstance(m, SubtaskChanged)]
        assert details == [{"closed": True}] * 2  # And no subtask saw a broken connection.


def test_a_worker_goes_by_the_clock_of_its_driver(master: FakeMaster) -> None:
    """The driver was started before the machine's clock was set, a day ago."""
    drivers_ms = time.time_ns() // 1_000_000 - 86_400_000
    with supervisor(master, 0):
        slot = master.accept_slot(program(exchange_graph(1), behaviour="tell_the_time"), 0)
        worker, ready = master.start_worker(slot)
        master.deploy(worker, 1, ready.address, sent_at_ms=drivers_ms)
        _, changed = master.expect(SubtaskChanged)
        assert 0 <= changed.details["now_ms"] - drivers_ms < 3_600_000
        resident = psutil.Process(ready.pid).memory_info().rss  # It knows its memory as well.
        assert 0.5 * resident < changed.details["memory"] < 2 * resident


def test_a_worker_whose_deployment_was_late_is_not_behind_triggers_and_barriers(
    master: FakeMaster,
) -> None:
    """Both deployments took an hour; only the first worker hears of the trigger."""
    now_ms = time.time_ns() // 1_000_000
    with supervisor(master, 0), supervisor(master, 1):
        loaded = program(exchange_graph(2))
        workers = master.deploy_workers(loaded, 0, 1, sent_at_ms=now_ms - 3_600_000)
        for _ in range(4):  # The watermarks: both are deployed.
            master.expect(SubtaskChanged)

        def times(number: int, triggered_at_ms: int) -> dict[tuple[int, str], int]:
            """The workers' clocks at the trigger and at the barrier in either slot."""
            barrier = CheckpointBarrier(CheckpointId(number), triggered_at_ms)
            master.send(workers[0][0], TriggerCheckpoint(AttemptNumber(1), barrier, sources=()))
            told = [master.expect(SubtaskChanged)[1] for _ in range(3)]
            return {(one.chain.index, at): ms for one in told for at, ms in one.details.items()}

        ahead = times(1, now_ms)
        assert set(ahead) == {(0, "at_trigger"), (0, "at_barrier"), (1, "at_barrier")}
        assert all(0 <= at_ms - now_ms < 1_800_000 for at_ms in ahead.values())
        behind = times(2, now_ms - 3_600_000)  # A stamp of before steps nothing back.
        assert all(0 <= at_ms - now_ms < 1_800_000 for at_ms in behind.values())


def test_a_killed_peer_is_a_broken_connection(master: FakeMaster) -> None:
    with supervisor(master, 0), supervisor(master, 1):
        workers = master.deploy_workers(program(exchange_graph(2)), 0, 1)
        for _ in range(4):
            master.expect(SubtaskChanged)
        os.kill(workers[1][1].pid, signal.SIGKILL)
        master.expect_details(broken="slot 1")


def test_heartbeats_show_that_an_idle_loop_comes_round(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program())
        master.start_worker(slot)
        beats = [master.expect(WorkerHeartbeat)[1] for _ in range(4)]
        assert beats[0].rounds < beats[1].rounds < beats[2].rounds < beats[3].rounds


def test_a_stuck_loop_is_seen_by_its_slot_alone(master: FakeMaster) -> None:
    """With the interpreter lock held nothing of the worker speaks; its supervisor still does."""
    with supervisor(master):
        slot = master.accept_slot(program(behaviour="hold_the_interpreter"))
        worker, ready = master.start_worker(slot)
        master.expect(WorkerHeartbeat)
        master.deploy(worker, 1, ready.address)
        for _ in range(3):
            master.expect(SlotHeartbeat)
        beats = [m.rounds for _, m in master.unseen if isinstance(m, WorkerHeartbeat)]
        assert len(beats) < 10  # Of about twenty in two seconds.
        master.order_worker(slot, 2)
        assert master.expect(WorkerExited, attempt=1)[1].exit_code == -signal.SIGKILL


def test_an_error_that_the_worker_did_not_report_ends_the_process(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program(behaviour="raise"))
        worker, ready = master.start_worker(slot)
        master.deploy(worker, 1, ready.address)
        _, exited = master.expect(WorkerExited)
        assert exited.exit_code == EXIT_FAILED
        assert "RuntimeError: the stand-in was told to raise" in exited.stderr_tail


def test_a_worker_ends_at_once_when_its_job_master_is_gone(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program())
        worker, ready = master.start_worker(slot)
        worker.close()
        master.peers.remove(worker)
        _, exited = master.expect(WorkerExited)
        assert exited.exit_code == EXIT_MASTER_LOST
        assert "lost its job master" in exited.stderr_tail
        await_gone(ready.pid)


def test_a_worker_refused_by_the_job_master_ends(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program())
        master.order_worker(slot, 1)
        master.attempts.clear()  # The attempt is over before its worker connects.
        _, exited = master.expect(WorkerExited)
        assert exited.exit_code == EXIT_MASTER_LOST
        assert master.refusals == ["attempt 1 is not running; its connection is refused"]


def test_a_signal_makes_a_worker_show_its_stacks(
    master: FakeMaster, capfd: pytest.CaptureFixture[str]
) -> None:
    with supervisor(master):
        slot = master.accept_slot(program())
        worker, ready = master.start_worker(slot)
        os.kill(ready.pid, signal.SIGUSR1)
        shown = shown_stacks(master, capfd)
        assert set(shown) == {"MainThread", "weir-io", "weir-snapshots", "weir-watch"}
        assert "in _loop" in shown["MainThread"]
        assert "in _run" in shown["weir-snapshots"]
        master.send(worker, StopProcess(AttemptNumber(1)))
        assert master.expect(WorkerExited)[1].exit_code == 0


def test_a_worker_shows_its_stacks_while_the_loop_is_stuck(
    master: FakeMaster, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loop never comes round to a handler in Python; it waits in a call of user code."""
    with supervisor(master):
        slot = master.accept_slot(program(behaviour="wait_for_ever"))
        worker, ready = master.start_worker(slot)
        master.deploy(worker, 1, ready.address)
        master.expect_details(waits=True)
        for _ in range(3):
            os.kill(ready.pid, signal.SIGUSR1)
            assert "in wait_for_ever" in shown_stacks(master, capfd)["MainThread"]
        # A thread beside the loop answers who asks for samples of its stack.
        asked = InspectSubtask(AttemptNumber(1), "r1", InspectionKind.STACKS, OperatorId("a"), 0)
        master.send(worker, asked)
        _, answer = master.expect(Inspected)
        assert (answer.request_id, answer.index) == ("r1", 0)
        assert answer.stacks.span_ms > 0
        os.kill(ready.pid, signal.SIGKILL)
        master.expect(WorkerExited)


def test_what_a_worker_starts_has_the_signals_default(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program(behaviour="start_a_process"))
        worker, ready = master.start_worker(slot)
        master.deploy(worker, 1, ready.address)
        started = psutil.Process(master.expect(SubtaskChanged)[1].details["child"])
        masks = Path(f"/proc/{started.pid}/status").read_text()
        for mask in ("SigBlk", "SigIgn", "SigCgt"):
            (bits,) = re.findall(rf"{mask}:\s*(\w+)", masks)
            assert int(bits, 16) & 1 << signal.SIGUSR1 - 1 == 0
        master.send(worker, StopProcess(AttemptNumber(1)))
        master.expect(WorkerExited)


def shown_stacks(master: FakeMaster, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The stacks by thread that a worker wrote, once all of them came through its supervisor."""
    shown = ""

    def is_whole() -> bool:
        nonlocal shown
        shown += capfd.readouterr().err
        return shown.endswith("End of the stacks\n")

    master.pump_until(is_whole, lambda: f"the stacks are shown; so far:\n{shown}")
    _, *parts = re.split(r"^Thread (\S+) \(.*\)$", shown, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def call() -> Call:
    return Call(lambda: None)


def test_the_inbox_keeps_the_order_and_wakes_the_loop_for_each_item() -> None:
    woken: list[bool] = []
    inbox = ThreadInbox(lambda: woken.append(bool(inbox)))
    items: list[InboxItem] = [call() for _ in range(4)]
    for item in items[:3]:
        inbox.put(item)
    assert inbox.drain() == items[:3]
    assert inbox.drain() == []
    inbox.put(items[3])
    assert inbox.drain() == items[3:]
    assert woken == [True] * 4  # The item was there already.


def test_work_that_raises_on_the_snapshot_thread_raises_on_the_loop() -> None:
    items: list[InboxItem] = []
    inbox = ThreadInbox(lambda: None)
    thread = SnapshotWorker(inbox)
    thread.submit(lambda: 1 / 0)
    thread.submit(lambda: inbox.put(call()))
    thread.stop()

    def have_come() -> bool:
        items.extend(inbox.drain())
        return len(items) == 2

    wait_until(have_come, "both outcomes have come")
    assert isinstance(items[0], Call)
    with pytest.raises(ZeroDivisionError):
        items[0].function()
    wait_until(
        lambda: "weir-snapshots" not in {t.name for t in threading.enumerate()},
        "the thread has ended",
    )
