"""Supervisors in processes of their own, with templates and workers, against a fake job master.

What depends on the template's process is tested with one that the slot forked and with one that was
started anew.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.networks import KINDS, make_network, worker_credentials
from tests.process.worker.fake_master import (
    FakeMaster,
    await_gone,
    fake_master,
    is_running,
    program,
    supervisor,
)
from tests.process.worker.standin import exchange_graph, fail_once, linger_once, start_a_thread
from tests.waiting import TIMEOUT_S, wait_until
from weir.channels.identity import SlotIdentity
from weir.ids import AttemptNumber
from weir.protocol.deployment import (
    DismissSlot,
    SlotFailed,
    SlotHeartbeat,
    SlotRegistered,
    StopWorker,
    WorkerExited,
    WorkerReady,
)
from weir.protocol.messages import SubtaskChanged
from weir.worker.memory.cgroup import find_cgroup
from weir.worker.versions import installed_versions


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with fake_master() as master:
        yield master


@pytest.fixture(params=[False, True], ids=["started", "forked"])
def warm(request: pytest.FixtureRequest) -> bool:
    """Whether the supervisor begins with the runtime loaded, and so forks its template."""
    return bool(request.param)


def descendants(process: "subprocess.Popen[bytes]") -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def test_a_supervisor_says_who_and_what_it_is(master: FakeMaster) -> None:
    with supervisor(master, slot_index=3) as process:
        slot, registered = master.expect(SlotRegistered)
        assert slot.peer == SlotIdentity(3)
        cgroup = find_cgroup()
        limited = None if cgroup is None else cgroup.memory()
        assert (registered.memory is None) is (limited is None)
        assert replace(registered, memory=None) == SlotRegistered(
            3, 7, "127.0.0.1", process.pid, installed_versions()
        )
        for _ in range(2):
            master.expect(SlotHeartbeat, slot_index=3)


def test_a_supervisor_with_another_secret_is_refused(master: FakeMaster) -> None:
    with supervisor(master, network=make_network("plain")) as process:
        master.pump_until(lambda: master.refusals, "the supervisor is refused")
        assert process.wait(TIMEOUT_S) == 1
    assert master.refusals == ["the peer does not know the secret of this job or attempt"]
    assert master.unseen == []


def test_a_killed_worker_is_reported_each_time(master: FakeMaster, warm: bool) -> None:
    with supervisor(master, warm=warm):
        slot = master.accept_slot(program())
        for attempt in range(1, 4):
            _, ready = master.start_worker(slot, attempt)
            assert is_running(ready.pid)
            os.kill(ready.pid, signal.SIGKILL)
            _, exited = master.expect(WorkerExited)
            assert exited == WorkerExited(0, AttemptNumber(attempt), ready.pid, -signal.SIGKILL)


def test_a_newer_attempt_kills_the_older_worker(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program(behaviour="deaf"))
        _, old = master.start_worker(slot, 1)
        _, new = master.start_worker(slot, 2)
        _, exited = master.expect(WorkerExited)
        assert (exited.attempt, exited.pid, exited.exit_code) == (1, old.pid, -signal.SIGKILL)
        assert is_running(new.pid)


def test_a_worker_told_to_stop_closes_and_exits_with_zero(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program())
        master.start_worker(slot)
        master.send(slot, StopWorker(AttemptNumber(1)))
        master.expect_details(closed=True)
        _, exited = master.expect(WorkerExited)
        assert (exited.exit_code, exited.stderr_tail) == (0, "")


def test_a_worker_that_does_not_stop_is_killed_after_the_grace(master: FakeMaster) -> None:
    with supervisor(master):
        slot = master.accept_slot(program(behaviour="deaf"))
        master.start_worker(slot)
        began = time.monotonic()
        master.send(slot, StopWorker(AttemptNumber(1), grace_ms=300))
        _, exited = master.expect(WorkerExited)
        assert exited.exit_code == -signal.SIGKILL
        assert 0.3 <= time.monotonic() - began < 30


def test_a_worker_stopped_before_it_started_never_runs_on(master: FakeMaster) -> None:
    """The order is taken back while the template still loads, or while it forks."""
    with supervisor(master):
        slot = master.accept_slot(program())
        master.order_worker(slot, 1)
        master.send(slot, StopWorker(AttemptNumber(1)))
        master.start_worker(slot, 2)
        master.order_worker(slot, 3)
        master.send(slot, StopWorker(AttemptNumber(3)))
        master.expect(WorkerExited, attempt=2)
        master.expect(WorkerExited, attempt=3)
        assert [m for _, m in master.unseen if getattr(m, "attempt", 0) == 1] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("behaviour", ["", "hold_the_interpreter"])
def test_no_process_outlives_its_supervisor(
    master: FakeMaster, warm: bool, number: signal.Signals, behaviour: str
) -> None:
    """Also when the worker is inside a C call that keeps the interpreter lock."""
    with supervisor(master, warm=warm) as process:
        slot = master.accept_slot(program(behaviour=behaviour))
        worker, ready = master.start_worker(slot)
        master.deploy(worker, 1, ready.address)
        pids = descendants(process)
        assert len(pids) == 2
        process.send_signal(number)
        process.wait(TIMEOUT_S)
        await_gone(*pids)


def test_what_user_code_started_goes_with_its_worker(master: FakeMaster, warm: bool) -> None:
    with supervisor(master, warm=warm):
        slot = master.accept_slot(program(behaviour="start_a_process"))
        worker, ready = master.start_worker(slot)
        master.deploy(worker, 1, ready.address)
        child = child_of(master)
        assert is_running(child)
        os.kill(ready.pid, signal.SIGKILL)
        master.expect(WorkerExited)
        await_gone(child)


def child_of(master: FakeMaster) -> int:
    while True:
        _, told = master.expect(SubtaskChanged)
        if "child" in told.details:
            return int(told.details["child"])


def test_the_supervisor_leaves_with_its_job_master(master: FakeMaster, warm: bool) -> None:
    with supervisor(master, warm=warm) as process:
        slot = master.accept_slot(program())
        master.start_worker(slot)
        pids = descendants(process)
        for peer in master.peers:
            peer.close()
        master.peers.clear()
        assert process.wait(TIMEOUT_S) == 1, "Spark starts no task again that returns"
        await_gone(*pids)


def test_a_dismissed_supervisor_returns_and_its_worker_is_killed(
    master: FakeMaster, warm: bool
) -> None:
    """Its connection ends right behind the message."""
    with supervisor(master, warm=warm) as process:
        slot = master.accept_slot(program())
        master.start_worker(slot)
        pids = descendants(process)
        master.send(slot, DismissSlot())
        for peer in master.peers:
            peer.close()
        master.peers.clear()
        assert process.wait(TIMEOUT_S) == 0
        await_gone(*pids)


def test_a_program_that_cannot_be_loaded_fails_the_slot_with_the_traceback(
    master: FakeMaster,
    warm: bool,
) -> None:
    with supervisor(master, warm=warm):
        slot = master.accept_slot(b"cno_such_module\nname\n.")
        _, failed = master.expect(SlotFailed)
        assert "No module named 'no_such_module'" in failed.cause
        assert "Traceback" in failed.cause
        master.order_worker(slot, 1)
        assert master.expect(SlotFailed)[1] == failed


def test_a_program_that_could_not_be_loaded_is_loaded_for_the_next_worker(
    master: FakeMaster, tmp_path: Path
) -> None:
    loaded = program(Loads(partial(fail_once, tmp_path / "marker"), exchange_graph(1)))
    with supervisor(master):
        slot = master.accept_slot(loaded)
        assert "the modules are away" in master.expect(SlotFailed)[1].cause
        master.start_worker(slot, 1)


def test_a_program_that_crashes_the_interpreter_fails_the_slot(
    master: FakeMaster, warm: bool
) -> None:
    with supervisor(master, warm=warm):
        master.accept_slot(b"cos\nabort\n(tR.")
        _, failed = master.expect(SlotFailed)
        assert "exit code -6" in failed.cause


class Loads:
    """Calls a function when the program is loaded."""

    def __init__(self, function: Any, result: Any) -> None:
        self.function = function
        self.result = result

    def __reduce__(self) -> Any:
        return _call_then_give, (self.function, self.result)


def _call_then_give(function: Any, result: Any) -> Any:
    function()
    return result


def test_a_program_that_starts_threads_runs_in_the_template_itself(
    master: FakeMaster, warm: bool
) -> None:
    """Forking it would copy locks that other threads hold; a new template takes its place."""
    loaded = program(Loads(start_a_thread, exchange_graph(1)))
    with supervisor(master, warm=warm) as process:
        slot = master.accept_slot(loaded)
        for attempt in (1, 2):
            _, ready = master.start_worker(slot, attempt)
            assert psutil.Process(ready.pid).ppid() == process.pid
        _, exited = master.expect(WorkerExited, attempt=1)
        assert exited.exit_code == -signal.SIGKILL
        master.send(slot, StopWorker(AttemptNumber(2)))
        assert master.expect(WorkerExited, attempt=2)[1].exit_code == 0


def test_a_template_that_dies_takes_its_worker_along_and_is_replaced(
    master: FakeMaster, warm: bool
) -> None:
    with supervisor(master, warm=warm) as process:
        slot = master.accept_slot(program())
        _, ready = master.start_worker(slot, 1)
        [template] = psutil.Process(process.pid).children()
        template.kill()
        _, exited = master.expect(WorkerExited, attempt=1)
        assert exited.pid == ready.pid
        assert "template process" in exited.stderr_tail
        await_gone(ready.pid)
        master.start_worker(slot, 2)


@pytest.mark.parametrize(
    ("number", "is_wanted"),
    [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, True)],
)
def test_a_template_killed_while_it_loads_the_program_fails_the_attempt_alone(
    master: FakeMaster, number: signal.Signals, is_wanted: bool, tmp_path: Path
) -> None:
    marker = tmp_path / "begun"
    loaded = program(Loads(partial(linger_once, marker), exchange_graph(1)))
    with supervisor(master, warm=True) as process:
        slot = master.accept_slot(loaded)
        if is_wanted:
            master.order_worker(slot, 1)
            for _ in range(2):  # The second was sent after the order had come.
                master.expect(SlotHeartbeat)
        master.pump_until(marker.exists, "the program is being loaded")
        [template] = psutil.Process(process.pid).children()
        template.send_signal(number)
        wait_until(lambda: not psutil.pid_exists(template.pid), "the supervisor has reaped it")
        if is_wanted:
            _, exited = master.expect(WorkerExited)
            assert (exited.attempt, exited.pid, exited.exit_code) == (1, 0, -number)
            assert "died" in exited.stderr_tail
            assert "while it loaded the pipeline" in exited.stderr_tail
        _, ready = master.start_worker(slot, 2)
        assert is_running(ready.pid)
        assert not any(isinstance(report, SlotFailed) for _, report in master.unseen)


def test_a_slot_without_room_for_a_process_fails_attempts_until_there_is(
    master: FakeMaster,
) -> None:
    with supervisor(master) as process:
        slot = master.accept_slot(program())
        master.start_worker(slot, 1)
        limited = psutil.Process(process.pid)
        [template] = limited.children()
        most = limited.rlimit(psutil.RLIMIT_NOFILE)
        limited.rlimit(psutil.RLIMIT_NOFILE, (3, most[1]))  # No pipe or socket more.
        template.kill()
        master.expect(WorkerExited, attempt=1)
        master.order_worker(slot, 2)
        _, exited = master.expect(WorkerExited, attempt=2)
        assert (exited.pid, exited.exit_code) == (0, 1)
        assert "cannot start a process on 127.0.0.1: [Errno 24]" in exited.stderr_tail
        limited.rlimit(psutil.RLIMIT_NOFILE, most)
        master.start_worker(slot, 3)
        assert not any(isinstance(report, SlotFailed) for _, report in master.unseen)


def test_restarts_leave_no_process_descriptor_or_thread(
    master: FakeMaster, warm: bool, tmp_path: Path
) -> None:
    restarts = 30
    # A worker may be ready before its template has closed its ends, and the supervisor heard of it.
    underway = 2

    def footprint(process: psutil.Process) -> tuple[int, int, int]:
        return process.num_fds(), process.num_threads(), len(process.children())

    with supervisor(master, warm=warm) as process:
        slot = master.accept_slot(program())
        master.start_worker(slot, 1)
        this = psutil.Process(process.pid)
        [template] = this.children()

        def footprints() -> list[int]:
            [worker] = template.children()
            return [number for one in (this, template, worker) for number in footprint(one)]

        before = footprints()
        seen: list[WorkerReady] = []
        for attempt in range(2, 2 + restarts):
            seen.append(master.start_worker(slot, attempt)[1])
            master.expect(WorkerExited, attempt=attempt - 1)
        after = footprints()
        grown = [now - then for now, then in zip(after, before, strict=True)]
        assert max(map(abs, grown)) <= underway, (before, after)
        assert [is_running(ready.pid) for ready in seen] == [False] * (restarts - 1) + [True]


@pytest.mark.parametrize("kind", list(KINDS))
def test_credentials_show_in_no_command_line_or_environment(kind: str) -> None:
    with fake_master(kind) as master, supervisor(master) as process:
        slot = master.accept_slot(program())
        master.start_worker(slot)
        secret = master.network.slot(0).secret
        for pid in [process.pid, *descendants(process)]:
            for name in ("cmdline", "environ"):
                shown = Path(f"/proc/{pid}/{name}").read_bytes()
                assert b"PRIVATE KEY" not in shown
                if kind == "plain":
                    assert secret not in shown
                    assert worker_credentials(master.network, 1, 0).secret not in shown


def test_keys_are_on_no_disk(warm: bool) -> None:
    """No open file of a slot's processes holds one, and none was left in the temporary files."""
    with fake_master("encrypted") as master, supervisor(master, warm=warm) as process:
        slot = master.accept_slot(program())
        master.start_worker(slot)
        for pid in [process.pid, *descendants(process)]:
            opened = opened_by(pid)
            assert opened
            assert not [name for name in opened if "weir-key" in name]


def test_a_job_secret_reaches_the_worker_and_is_masked_in_all_that_leaves_the_slot(
    master: FakeMaster, warm: bool, tmp_path: Path
) -> None:
    value = "correct horse battery staple"
    given = (("PASSWORD", value),)
    log = tmp_path / "log"
    with log.open("wb") as file, supervisor(master, warm=warm, output=file.fileno()) as process:
        slot = master.accept_slot(program(behaviour="print"), secrets=given)
        worker, ready = master.start_worker(slot)
        for pid in [process.pid, *descendants(process)]:
            for name in ("cmdline", "environ"):
                assert value.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        master.deploy(worker, 1, ready.address, secrets=given)
        _, exited = master.expect(WorkerExited, attempt=1)
        assert exited.stderr_tail == "complained ***\n"
        wait_until(lambda: log.read_text().count("***") == 2, "both lines of the worker")
    said = log.read_text()
    # Python writes standard error in pieces, and both end in one file.
    assert said.count("***") == 2
    assert value not in said
    # Reports are sent by another thread, which the process may not have waited for.
    told = [m for _, m in master.unseen if isinstance(m, SubtaskChanged)]
    assert all(message.details == {"told": "***"} for message in told)


def test_only_a_supervisor_that_is_warm_forks_its_template(master: FakeMaster, warm: bool) -> None:
    """A fork shows its parent's command, and takes no time to import."""
    with supervisor(master, warm=warm) as process:
        slot = master.accept_slot(program())
        master.start_worker(slot)
        [template] = psutil.Process(process.pid).children()
        [worker] = template.children()
        assert (template.cmdline() == psutil.Process(process.pid).cmdline()) == warm
        for child in (template, worker):
            assert not sockets_of(child.pid) & sockets_of(process.pid)


def opened_by(pid: int) -> list[str]:
    return [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]


def sockets_of(pid: int) -> set[str]:
    return {name for name in opened_by(pid) if name.startswith("socket:")}


def test_a_forked_template_ends_with_a_supervisor_that_is_refused(master: FakeMaster) -> None:
    with supervisor(master, network=make_network("plain"), warm=True) as process:
        (template,) = wait_until(lambda: descendants(process), "the template is forked")
        master.pump_until(lambda: master.refusals, "the supervisor is refused")
        assert process.wait(TIMEOUT_S) == 1
        await_gone(template)


def test_a_forked_template_that_died_before_the_program_came_is_replaced(
    master: FakeMaster,
) -> None:
    with supervisor(master, warm=True) as process:
        (template,) = wait_until(lambda: descendants(process), "the template is forked")
        os.kill(template, signal.SIGKILL)
        await_gone(template)
        slot = master.accept_slot(program())
        _, ready = master.start_worker(slot)
        assert is_running(ready.pid)
