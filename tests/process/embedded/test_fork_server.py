"""The fork server: its forks run as Python started anew would, and outlive it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from controlplane.embedded.fork_server import LOST, Fork, ForkServer
from controlplane.embedded.stack import BASE_DIR
from tests.waiting import TIMEOUT_S, wait_until
from weir.child_process import is_alive

LOADED = "print('loaded once', flush=True)\nstate = []\n"
# Says what it sees. With "wait" it goes on until it is ended, with "fail" it raises.
PROGRAM = """
import atexit, gc, json, os, sys, time
import loaded
loaded.state.append("seen")
fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
print(json.dumps({
    "name": __name__, "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(), "fds": sorted(fds),
    "state": loaded.state, "variables": [os.environ.get("VARIABLE"), "PATH" in os.environ],
    "read": sys.stdin.read(),
    "session": os.getsid(0) == os.getpid(), "gc": gc.isenabled(), "parent": os.getppid(),
}), flush=True)
atexit.register(print, "ended in order", flush=True)
if "fail" in sys.argv:
    raise SystemExit("no such luck")
if "wait" in sys.argv:
    time.sleep(600)
"""
THREAD = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    yield from started(tmp_path, LOADED)


def started(directory: Path, loaded: str) -> Iterator[ForkServer]:
    (directory / "loaded.py").write_text(loaded)
    (directory / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(BASE_DIR), "VARIABLE": "the server's"}
    with (directory / "server.log").open("wb") as log:
        server = ForkServer(["loaded"], environment=environment, directory=directory, log=log)
    yield server
    server.end()


def fork(server: ForkServer, output: Path, *arguments: str, **more: object) -> Fork | None:
    with (output / "out").open("wb") as out, (output / "err").open("wb") as err:
        return server.start(
            [sys.executable, "-m", "program", *arguments],
            title="a program",
            stdout=out.fileno(),
            stderr=err.fileno(),
            **more,  # type: ignore[arg-type]
        )


def said(directory: Path) -> dict[str, object]:
    wait_until(lambda: "\n" in (directory / "out").read_text(), "the program has said its part")
    answer: dict[str, object] = json.loads((directory / "out").read_text().splitlines()[0])
    return answer


def test_a_fork_runs_as_a_python_of_its_own_would(server: ForkServer, tmp_path: Path) -> None:
    for _ in range(2):
        process = fork(server, tmp_path, "a word")
        assert process is not None
        assert process.wait(TIMEOUT_S) == 0
        assert said(tmp_path) == {
            "name": "__main__",
            "argv": [str(tmp_path / "program.py"), "a word"],
            "path": str(BASE_DIR),
            "cwd": str(tmp_path),
            "fds": ["0", "1", "2"],
            "state": ["seen"],
            "variables": ["the server's", True],
            "read": "",
            "session": True,
            "gc": True,
            "parent": server.pid,
        }
        assert (tmp_path / "out").read_text().endswith("ended in order\n")
    # The standard ones, the link and the two ends of a pipe: nothing is kept of a fork.
    wait_until(lambda: psutil.Process(server.pid).num_fds() == 6, "the server has closed the rest")
    assert (tmp_path / "server.log").read_text() == "loaded once\n"


def test_a_fork_may_have_its_own_environment_and_directory(
    server: ForkServer, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(PROGRAM)
    process = fork(server, tmp_path, directory=elsewhere, environment={"VARIABLE": "mine"})
    assert process is not None
    assert process.wait(TIMEOUT_S) == 0
    seen = said(tmp_path)
    assert (seen["variables"], seen["cwd"]) == (["mine", False], str(elsewhere))
    assert seen["path"] == str(elsewhere)


def test_a_failure_has_its_exit_code_and_its_words(server: ForkServer, tmp_path: Path) -> None:
    process = fork(server, tmp_path, "fail")
    assert process is not None
    assert process.wait(TIMEOUT_S) == 1
    assert process.returncode == process.poll() == 1
    assert (tmp_path / "err").read_text() == "no such luck\n"
    process.kill()  # Nothing, since it has ended.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_that_is_ended_by_a_signal(
    server: ForkServer, tmp_path: Path, number: signal.Signals
) -> None:
    process = fork(server, tmp_path, "wait")
    assert process is not None
    said(tmp_path)
    assert psutil.Process(process.pid).name() == "a program"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == -number


def test_a_fork_goes_on_without_its_server_and_can_be_ended(
    server: ForkServer, tmp_path: Path
) -> None:
    process = fork(server, tmp_path, "wait")
    assert process is not None
    said(tmp_path)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert is_alive(psutil.Process(process.pid))
    assert fork(server, tmp_path) is None
    process.kill()
    assert process.wait(TIMEOUT_S) == LOST


@pytest.mark.parametrize("loaded", [THREAD, "raise ImportError('no such module')"])
def test_what_cannot_be_forked_is_not(tmp_path: Path, loaded: str) -> None:
    (server,) = started(tmp_path, loaded)  # Ended already when the second one is asked for.
    assert fork(server, tmp_path) is None
    log = (tmp_path / "server.log").read_text()
    assert "2 threads run after the import of loaded" in log or "no such module" in log


def test_the_server_ends_when_its_starter_has_gone_and_its_forks_ended(tmp_path: Path) -> None:
    servers = started(tmp_path, LOADED)
    server = next(servers)
    process = fork(server, tmp_path, "wait")
    assert process is not None
    said(tmp_path)
    server._link.close()  # As the kernel does when the starter is killed.
    seen = psutil.Process(server.pid)
    with pytest.raises(psutil.TimeoutExpired):
        seen.wait(0.5)
    process.kill()
    wait_until(lambda: not is_alive(seen), "the server has ended")
    next(servers, None)


def test_ctrl_c_while_a_fork_is_awaited_leaves_none(tmp_path: Path) -> None:
    servers = started(tmp_path, f"{LOADED}import time\ntime.sleep(600)\n")
    server = next(servers)
    log = tmp_path / "server.log"
    wait_until(lambda: "loaded once" in log.read_text(), "the server loads")
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        fork(server, tmp_path)
    interrupt.join()
    assert not psutil.pid_exists(server.pid)
    assert (tmp_path / "out").read_bytes() == b""
    next(servers, None)
