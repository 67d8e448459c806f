"""The whole control plane on one machine: it comes up, heals, and leaves nothing behind."""

import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode

import psutil
import pytest

from controlplane.embedded.process import ServiceError, ServiceProcess
from controlplane.embedded.server import free_port
from controlplane.embedded.stack import ALL, PROGRAMS, HomeInUseError, Stack
from tests.migrated import begin_prepared
from tests.process.embedded.weir_up import DEADLINE_S, WeirUp
from tests.processes import processes_of
from tests.services import reachable_directory
from tests.waiting import wait_until
from weir.child_process import is_alive

STUCK_AFTER_S = 15
FORK_SERVER = "controlplane.embedded.fork_server"
# Every interpreter imports this as it starts. In web it makes a thread that holds the interpreter
# lock, once, when it is asked to.
HOLDER = """
import ctypes, sys, threading, time
from pathlib import Path

def hold():
    while not ASKED.exists():
        time.sleep(0.2)
    ASKED.unlink()
    ctypes.PyDLL(None).sleep(3600)

ASKED = Path({asked!r})
if "controlplane.serve" in sys.orig_argv:
    threading.Thread(target=hold, daemon=True).start()
"""


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code)
    except OSError:
        return 0


def await_ready(url: str) -> None:
    wait_until(lambda: status(f"{url}/readyz") == 200, "the control plane is ready", DEADLINE_S)


@pytest.fixture(scope="module")
def said() -> list[str]:
    """The messages of this module's stack."""
    return []


@pytest.fixture(scope="module")
def stack(said: list[str]) -> Iterator[Stack]:
    """One stack for several tests, since each start takes seconds."""
    with reachable_directory() as directory:
        home = directory / "home"
        holder = directory / "holder"
        holder.mkdir()
        (holder / "sitecustomize.py").write_text(HOLDER.format(asked=str(home / "hold")))
        environment = {
            "WEIR_STUCK_AFTER_S": str(STUCK_AFTER_S),
            "PYTHONPATH": os.pathsep.join([str(holder), os.environ.get("PYTHONPATH", "")]),
        }
        started = Stack(home, fast=True, say=said.append, environment=environment)
        begin_prepared(home)
        with started:
            yield started
        assert processes_of(directory) == []


def test_all_services_do_their_work(stack: Stack) -> None:
    assert status(f"{stack.url}/healthz") == 200
    assert status(f"{stack.url}/login/") == 200
    pids = {name: stack.process(name).pid for name in ALL}
    assert len(set(pids.values())) == len(ALL)
    # The ticks go all the way round: beat, Redis, worker, PostgreSQL.
    await_ready(stack.url)


def test_another_stack_on_the_same_home_is_refused(stack: Stack) -> None:
    with pytest.raises(HomeInUseError, match=f"already runs on {stack.home}, as process"):
        Stack(stack.home).start()
    assert all(stack.process(name).running for name in ALL)


def all_are_back(said: list[str]) -> bool:
    """Whether no service is being started again, as a worker may be that lost its Redis."""
    last = {line.split()[0]: line for line in said if line.split()[0] in ALL}
    return all(line.endswith("is back") for line in last.values())


@pytest.mark.parametrize("name", ALL)
def test_a_service_that_is_killed_comes_back(stack: Stack, said: list[str], name: str) -> None:
    wait_until(lambda: all_are_back(said), "all services to be back", DEADLINE_S)
    service, url = stack.process(name), stack.url
    before, told = service.pid, len(said)
    service.kill()
    wait_until(lambda: f"{name} is back" in said[told:], f"{name} is back", DEADLINE_S)
    assert service.pid != before
    assert any(line.startswith(f"{name} ended unexpectedly") for line in said[told:])
    assert stack.url == url
    await_ready(url)


def fork_servers(stack: Stack) -> set[psutil.Process]:
    """The fork server of a stack, unless it has ended; its forks are no children of it then.

    Only root may read the environment of an undumpable process, which names its home.
    """
    forks = (psutil.Process(stack.process(name).pid) for name in PROGRAMS)
    parents = {fork.parent() for fork in forks}
    return {process for process in parents if process is not None and is_fork_server(process)}


def is_fork_server(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return FORK_SERVER in process.cmdline() and process.name().startswith("python")
    return False


def test_programs_with_the_environment_of_the_fork_server_are_its_forks(stack: Stack) -> None:
    (server,) = fork_servers(stack)
    children = {process.pid: process.name() for process in server.children()}
    forked = [name for name in PROGRAMS if name != "launcher"]
    assert children == {stack.process(name).pid: f"weir:{name}" for name in forked}
    assert server.num_threads() == 1


def test_a_service_that_was_stopped_stays_down(stack: Stack, said: list[str]) -> None:
    beat, worker = stack.process("beat"), stack.process("worker")
    beat.stop()
    told = len(said)
    worker.kill()
    wait_until(lambda: "worker is back" in said[told:], "the worker is back", DEADLINE_S)
    assert not beat.running
    beat.start()
    assert beat.running


def test_secrets_are_private_and_on_no_command_line(stack: Stack) -> None:
    secrets = [stack.postgres.password, stack.redis.password]
    secrets.append(stack.environment["SECRET_KEY"])
    secrets.append((stack.home / "encryption-key").read_text())
    assert stack.environment["WEIR_ENCRYPTION_KEYS_FILE"] == str(stack.home / "encryption-key")
    for name in ("secret-key", "encryption-key", "postgres/password", "redis/password"):
        assert (stack.home / name).stat().st_mode & 0o777 == 0o600
    words = [word for process in processes_of(stack.home) for word in process.cmdline()]
    assert words
    assert not [word for word in words if any(secret in word for secret in secrets)]


def test_launcher_which_starts_user_code_has_no_secret_key(stack: Stack) -> None:
    def variables(name: str) -> list[bytes]:
        return Path(f"/proc/{stack.process(name).pid}/environ").read_bytes().split(b"\0")

    if os.geteuid() != 0:  # They are undumpable: user code, of this user as well, reads neither.
        for name in ("web", "launcher"):
            with pytest.raises(PermissionError):
                variables(name)
        return
    key = stack.environment["SECRET_KEY"].encode()
    assert any(key in one for one in variables("web"))
    assert not any(key in one for one in variables("launcher"))
    assert b"DJANGO_SETTINGS_MODULE=controlplane.settings.launcher" in variables("launcher")


def web_of_its_own(stack: Stack, said: list[str]) -> ServiceProcess:
    """The web service as no fork: the fork server ends for that, then web, unless they have."""
    web = stack.process("web")
    for server in fork_servers(stack):
        server.kill()
        server.wait(DEADLINE_S)
        assert all(stack.process(name).running for name in PROGRAMS)
    if FORK_SERVER in psutil.Process(web.pid).cmdline():
        before, told = web.pid, len(said)
        web.kill()
        wait_until(lambda: "web is back" in said[told:], "web is back", DEADLINE_S)
        assert web.pid != before
    assert "controlplane.serve" in psutil.Process(web.pid).cmdline()
    return web


def test_without_a_fork_server_services_go_on_and_come_back(stack: Stack, said: list[str]) -> None:
    web_of_its_own(stack, said)
    await_ready(stack.url)


def test_a_service_that_is_stuck_ends_itself_and_comes_back(stack: Stack, said: list[str]) -> None:
    """The thread that holds a service is started in a Python of its own."""
    service = web_of_its_own(stack, said)
    before, told = service.pid, len(said)
    (stack.home / "hold").touch()
    wait_until(lambda: "web is back" in said[told:], "web to come back", DEADLINE_S)
    assert not (stack.home / "hold").exists()
    assert service.pid != before
    assert "Timeout (" in service.log_path.read_text()  # With the stacks of its threads.


def test_a_taken_port_is_said_and_what_was_started_ends() -> None:
    with reachable_directory() as directory, socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        stack = Stack(directory / "home", port=port, fast=True)
        with pytest.raises(ServiceError, match=f"port {port} is taken by another program"):
            stack.start()
        assert processes_of(directory) == []


def logs_in(page: str, password: str) -> bool:
    """Whether the account that was printed opens the page of jobs."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar := CookieJar()))
    with browser.open(f"{page}/login/", timeout=60):
        token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {"username": "operator", "password": password, "csrfmiddlewaretoken": token}
    with browser.open(f"{page}/login/", urlencode(form).encode(), timeout=60) as response:
        return str(response.url) == f"{page}/jobs/"


def test_weir_up_prints_a_login_that_works_and_ends_everything_on_ctrl_c(home: Path) -> None:
    """On an empty home: this one migrates."""
    first = WeirUp(home, "--port", "0")
    page, password = first.login()
    assert logs_in(page, password)
    assert not logs_in(page, "wrong")
    assert len(processes_of(home)) > len(ALL)
    refused = WeirUp(home, "--port", "0")
    refused.await_line("already runs on")
    refused.process.communicate(timeout=DEADLINE_S)
    assert refused.process.returncode == 1
    assert first.end(signal.SIGINT) == 0, first.output
    assert "Everything has ended." in first.output
    assert processes_of(home) == []
    assert (home / "operator").stat().st_mode & 0o777 == 0o600


def test_weir_up_after_a_kill_ends_what_was_left_and_shows_the_same_login(home: Path) -> None:
    """The supervisor dies with everything running; the next one must not run beside the rest."""
    begin_prepared(home)
    first = WeirUp(home, "--port", str(free_port()))
    login = first.login()
    left = processes_of(home)
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    orphans = [process for process in left if is_alive(process)]
    assert len(orphans) >= len(ALL)
    second = WeirUp(home, "--port", login[0].rpartition(":")[2])
    assert second.login() == login
    assert "ended the process that an earlier run left behind" in second.output
    assert [process for process in orphans if is_alive(process)] == []
    assert second.end(signal.SIGTERM) == 0, second.output
    assert processes_of(home) == []


def test_ctrl_c_during_the_start_leaves_nothing(home: Path) -> None:
    early = WeirUp(home, "--port", "0")
    wait_until((home / "postgres" / "postgresql.log").exists, "PostgreSQL starts", DEADLINE_S)
    assert early.end(signal.SIGINT) == 0, early.output
    assert processes_of(home) == []


def test_the_servers_alone_can_be_started() -> None:
    with reachable_directory() as directory:
        stack = Stack(directory / "home", fast=True, auto_restart=False)
        stack.start(only=["postgres", "redis"])
        try:
            assert stack.postgres.running
            assert stack.redis.running
            assert not stack.process("web").running
            stack.postgres.kill()
            assert not stack.postgres.running
            stack.postgres.start()
        finally:
            stack.stop()
        with pytest.raises(ValueError, match="no such service: mail"):
            stack.start(only=["mail"])
