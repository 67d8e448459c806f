"""Services that are stuck say so and end themselves; those that wait for a server do not."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

import pytest

from controlplane.embedded.redis import Redis
from controlplane.embedded.server import free_port
from tests.process.controlplane.web import Web
from tests.services import database_url
from tests.waiting import wait_until

DEADLINE_S = 90.0
STUCK_AFTER_S = 3
ENDED_BY_WATCHDOG = 1


@contextmanager
def service(
    words: Sequence[str], log: Path, redis_url: str, prefix: Sequence[str] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    """A service of the control plane, in a process group of its own, which ends with the test."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", *words],
            env=os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "controlplane.settings.test",
                "DATABASE_URL": database_url(),
                "REDIS_URL": redis_url,
                "WEIR_HOME": str(log.parent),
                "WEIR_STUCK_AFTER_S": str(STUCK_AFTER_S),
            },
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def stuck_web(
    log: Path, redis: Redis, prefix: Sequence[str] = ()
) -> Iterator[tuple[Web, "subprocess.Popen[bytes]"]]:
    web = Web.at(free_port())
    words = ["uvicorn", "tests.process.controlplane.stuck:application", "--port", str(web.port)]
    with service(words, log, redis.url) as process:
        wait_until(
            lambda: is_healthy(web, process), f"the web process answers; its log: {log}", DEADLINE_S
        )
        yield web, process


def is_healthy(web: Web, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None
    try:
        return web.request("GET", "/healthz").status == 200
    except OSError:
        return False


def celery(*words: str) -> list[str]:
    return ["celery", "-A", "controlplane", *words]


def worker(pool: str) -> list[str]:
    return celery(
        *("worker", "-P", pool, "-c", "1", "-Q", "launch", "-n", "stuck@weir"),
        *("-I", "tests.process.controlplane.stuck"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    )


@pytest.mark.django_db(transaction=True)
def test_web_with_held_threads_says_so_and_ends(redis: Redis, tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    with stuck_web(log, redis) as (web, process):
        assert web.request("GET", "/healthz").status == 200
        assert web.request("GET", "/hang-threads").status == 200
        wait_until(
            lambda: web.request("GET", "/healthz").status == 503, "healthz says so", DEADLINE_S
        )
        with suppress(OSError):  # It may end in between.
            answer = web.request("GET", "/healthz")
            assert answer.json["status"] == "stuck"
            assert "the database threads has not come round for" in answer.json["detail"]
        assert process.wait(DEADLINE_S) == ENDED_BY_WATCHDOG
    said = log.read_text()
    assert "stuck: the database threads" in said
    assert "stuck.py" in said or "threads.py" in said  # The stacks.


@pytest.mark.django_db(transaction=True)
def test_web_whose_loop_holds_the_interpreter_ends(redis: Redis, tmp_path: Path) -> None:
    """No Python code of the watchdog can run: its timer needs none."""
    log = tmp_path / "web.log"
    with stuck_web(log, redis) as (web, process):
        with suppress(OSError):
            web.request("GET", "/hang-loop")
        assert process.wait(DEADLINE_S) == ENDED_BY_WATCHDOG
    assert "in hang_loop" in log.read_text()


@pytest.mark.django_db(transaction=True)
def test_launcher_whose_tick_hangs_ends(redis: Redis, tmp_path: Path) -> None:
    from controlplane.celery import app

    log = tmp_path / "launcher.log"
    with service(worker("solo"), log, redis.url) as process:
        app.send_task("tests.hang", queue="launch")
        assert process.wait(DEADLINE_S) == ENDED_BY_WATCHDOG
    said = log.read_text()
    assert "stuck: the event loop has not come round for" in said
    assert "in hang" in said


@pytest.mark.django_db(transaction=True)
def test_beat_that_hangs_ends(redis: Redis, tmp_path: Path) -> None:
    log = tmp_path / "beat.log"
    scheduler = "tests.process.controlplane.stuck:HangingScheduler"
    words = celery("beat", "-S", scheduler, "-s", str(tmp_path / "schedule"), "--pidfile=")
    with service(words, log, redis.url) as process:
        assert process.wait(DEADLINE_S) == ENDED_BY_WATCHDOG
    assert "stuck: the event loop has not come round for" in log.read_text()


@pytest.mark.django_db(transaction=True)
def test_worker_and_beat_outlast_a_broker_that_is_away(tmp_path: Path) -> None:
    """They wait for it in a loop of their own, which does not come round."""
    redis = Redis(tmp_path / "redis")
    redis.start()
    try:
        words = celery("beat", "-s", str(tmp_path / "schedule"), "--pidfile=")
        with (
            service(worker("prefork"), tmp_path / "worker.log", redis.url) as one,
            service(words, tmp_path / "beat.log", redis.url) as other,
        ):
            wait_until(
                lambda: (
                    "ready" in (tmp_path / "worker.log").read_text()
                    and any(tmp_path.glob("schedule*"))
                ),
                "both are up",
                DEADLINE_S,
            )
            redis.stop()
            # The occasion: longer than the watchdog's patience and its grace together.
            time.sleep(STUCK_AFTER_S + 5 + 4)
            assert (one.poll(), other.poll()) == (None, None)
            assert "stuck:" not in (tmp_path / "worker.log").read_text()
            assert "Connection" in (tmp_path / "worker.log").read_text()
    finally:
        redis.remove()


@pytest.mark.django_db(transaction=True)
def test_idle_services_are_left_alone(redis: Redis, tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    with stuck_web(log, redis) as (web, process):
        stop = threading.Event()
        assert not stop.wait(STUCK_AFTER_S + 5 + 2)
        assert process.poll() is None
        assert web.request("GET", "/healthz").status == 200


# Root's number without its rights: what follows is about processes of one user.
PLAIN_USER = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")

# Protection ---------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0 or which("setpriv") is None, reason="needs root, setpriv")
@pytest.mark.django_db(transaction=True)
def test_environment_of_services_is_root_s_alone(redis: Redis, tmp_path: Path) -> None:
    """They are undumpable: user code that runs as their user reads no secret of theirs."""
    words = celery("beat", "-s", str(tmp_path / "schedule"), "--pidfile=")
    with (
        stuck_web(tmp_path / "web.log", redis, PLAIN_USER) as (_, web),
        service(worker("prefork"), tmp_path / "worker.log", redis.url, PLAIN_USER) as main,
        service(words, tmp_path / "beat.log", redis.url, PLAIN_USER) as beat,
    ):
        wait_until(lambda: "ready" in (tmp_path / "worker.log").read_text(), "up", DEADLINE_S)
        wait_until(lambda: any(tmp_path.glob("schedule*")), "beat is up", DEADLINE_S)
        pool = children(main.pid)
        assert pool
        for pid in (web.pid, main.pid, beat.pid, *pool):
            assert "DATABASE_URL" in Path(f"/proc/{pid}/environ").read_text()  # Root's view.
            assert b"DATABASE_URL" not in as_their_user(f"/proc/{pid}/environ")
        command, environment = [*PLAIN_USER, "sleep", "60"], {**os.environ, "DATABASE_URL": "x"}
        with subprocess.Popen(command, env=environment) as plain:
            wait_until(
                lambda: b"sleep" in Path(f"/proc/{plain.pid}/cmdline").read_bytes()[:6], "it runs"
            )
            assert b"DATABASE_URL" in as_their_user(f"/proc/{plain.pid}/environ")
            plain.kill()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def as_their_user(path: str) -> bytes:
    """The file as a process of the same user reads it that has none of root's capabilities."""
    return subprocess.run([*PLAIN_USER, "cat", path], capture_output=True, check=False).stdout
