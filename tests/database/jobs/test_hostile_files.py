"""User code replaces its log or its answer: no secret is read, and nothing stops.

Drivers and previews run as the launcher's user here, which lets them do it; ``test_driver_account``
has those that run as another user.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.accounts.models import User
from jobs import operations, preview_processes
from jobs.drivers import child_processes, driver_files, launcher
from jobs.models import Driver, DriverStatus, Operation, OperationKind
from tests.database.jobs.builders import (
    driver_of,
    reload,
    submitted,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

DEADLINE_S = 120.0
SECRET = "SECRET_KEY=hunter2"
Attack = Callable[[Path, Path], None]


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def second_name(path: Path, secret: Path) -> None:
    os.link(secret, path)


def fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


ATTACKS = [(link, "symbolic link"), (second_name, "second name"), (fifo, "FIFO")]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Stands for ``/proc/PID/environ`` of a service."""
    path = tmp_path / "environ"
    path.write_text(SECRET)
    return path


@pytest.fixture
def operator_browser(operator: User) -> Client:
    browser = Client()
    browser.force_login(operator)
    return browser


def replaced(path: Path, attack: Attack, secret: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    attack(path, secret)
    if attack is not fifo:
        assert path.read_text() == SECRET  # The occasion: a plain open would read it.


def in_time(act: Callable[[], Any]) -> Any:
    """The result of a call, which must not block."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(act())
        finally:
            connections.close_all()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "it blocks"
    return results[0]


@pytest.mark.parametrize(("attack", "said"), ATTACKS)
@pytest.mark.django_db(transaction=True)
def test_log_that_was_replaced_is_read_by_no_page(
    attack: Attack, said: str, secret: Path, operator_browser: Client
) -> None:
    job = submitted()
    replaced(driver_files.log_path(driver_of(job)), attack, secret)
    for address in (
        f"/jobs/{job.pk}/logs/",
        f"/jobs/{job.pk}/logs/?from=0",
        f"/jobs/{job.pk}/logs/1/data",
        f"/jobs/{job.pk}/logs/1/download",
        f"/api/v1/jobs/{job.pk}/drivers/1/log",
        f"/api/v1/jobs/{job.pk}/drivers/1/log?offset=0",
    ):
        response = in_time(lambda address=address: operator_browser.get(address))
        body = b"".join(response).decode()
        assert SECRET not in body
        if not address.endswith("download"):
            assert said in body, address


@pytest.mark.parametrize(("attack", "said"), ATTACKS)
@pytest.mark.django_db(transaction=True)
def test_launcher_reports_a_lost_driver_whose_log_was_replaced(
    attack: Attack, said: str, secret: Path, settings: Settings, tmp_path: Path
) -> None:
    """The end of the log becomes part of the cause, which viewers read."""
    script = tmp_path / "spark-submit"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    settings.WEIR_SPARK_SUBMIT = str(script)
    job, other = submitted(), submitted()
    driver = driver_of(job)
    assert in_time(launcher.launch) == 2
    replaced(driver_files.log_path(driver), attack, secret)
    wait_until(
        lambda: in_time(launcher.tick) or (has_ended(driver) and has_ended(driver_of(other))),
        "both drivers have ended",
    )
    cause = Driver.objects.get(pk=driver.pk).cause
    assert SECRET not in cause
    assert "exit code 3" in cause
    assert said in cause
    reap_drivers()


def has_ended(driver: Driver) -> bool:
    return reload(driver).status == DriverStatus.LOST


def reap_drivers() -> None:
    for child in list(child_processes._children.values()):
        child.wait(timeout=DEADLINE_S)
    child_processes._children.clear()


# Answers of previews ------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Operation]]:
    """An operation to which a script is the answer; its process is gone after the test."""

    def ask(script: str) -> Operation:
        commands = [[sys.executable, "-c", script]]
        monkeypatch.setattr(preview_processes, "commands_of", lambda _: commands)
        given = {"kind": "restore", "options": {"parameters": {"key": "hunter2"}}}
        return operations.begin(submitted(), OperationKind.PREVIEW, None, given, key=None)

    yield ask
    for child in preview_processes._children:
        if child.poll() is None:
            child.kill()
        child.wait(timeout=60)
    preview_processes._children.clear()


@pytest.mark.parametrize(("attack", "said"), ATTACKS)
@pytest.mark.parametrize("name", ["0.err", "0.out"])
@pytest.mark.django_db(transaction=True)
def test_answer_that_was_replaced_is_not_read(
    attack: Attack, said: str, name: str, secret: Path, asked: Callable[[str], Operation]
) -> None:
    action = {
        link: f"os.symlink({str(secret)!r}, path)",
        second_name: f"os.link({str(secret)!r}, path)",
        fifo: "os.mkfifo(path)",
    }[attack]
    operation = asked(f"import os; path = '../{name}'; os.unlink(path); {action}; os._exit(1)")
    wait_until(
        lambda: in_time(preview_processes.tick) or reload(operation).ended_at is not None,
        "the operation has ended",
    )
    operation = reload(operation)
    assert operation.status == "failed"
    assert SECRET not in operation.error
    assert said in operation.error


def test_answer_that_seems_endless_is_not_read(asked: Callable[[str], Operation]) -> None:
    operation = asked("import os; os.ftruncate(1, 1 << 40)")
    wait_until(
        lambda: preview_processes.tick() or reload(operation).ended_at is not None,
        "the operation has ended",
    )
    assert "more than 1 MiB" in reload(operation).error


def test_arguments_of_the_pipeline_are_in_no_command_line(
    asked: Callable[[str], Operation],
) -> None:
    script = """if True:
        import json, pathlib
        path = pathlib.Path("../arguments.json")
        print(json.dumps({
            "mode": oct(path.stat().st_mode),
            "given": json.loads(path.read_text()),
            "command": pathlib.Path("/proc/self/cmdline").read_text(),
        }))
    """
    operation = asked(script)
    wait_until(
        lambda: preview_processes.tick() or reload(operation).ended_at is not None,
        "the operation has ended",
    )
    result = reload(operation).result
    assert result["given"] == {"key": "hunter2"}
    assert result["mode"] == "0o100600"
    assert "hunter2" not in result["command"]


@pytest.mark.django_db(transaction=True)
def test_no_file_is_read_and_no_process_started_inside_a_transaction(
    asked: Callable[[str], Operation],
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    tmp_path: Path,
) -> None:
    """A call that blocks would hold the job's lock, for all of the control plane."""
    script = tmp_path / "spark-submit"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    settings.WEIR_SPARK_SUBMIT = str(script)
    from django.db import connection

    from jobs.drivers import driver_watch, user_processes
    from weir import untrusted_files

    seen: list[str] = []

    def outside(module: Any, name: str) -> None:
        plain = getattr(module, name)

        def checked(*args: Any, **kwargs: Any) -> Any:
            assert not connection.in_atomic_block, name
            seen.append(name)
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, checked)

    for module, name in (
        (untrusted_files, "open_regular"),
        (preview_processes, "open_regular"),
        (preview_processes, "read_whole"),
        (user_processes, "start"),
        (user_processes, "noted"),
        (user_processes, "remove"),
        (driver_files, "prepare"),
        (driver_files, "tail"),
    ):
        outside(module, name)
    operation = asked("print('{}')")
    job = submitted()
    wait_until(
        lambda: preview_processes.tick() or reload(operation).ended_at is not None,
        "the operation has ended",
    )
    wait_until(lambda: launcher.tick() or has_ended(driver_of(job)), "the driver has ended")
    wait_until(
        lambda: launcher.tick() or reload(driver_of(job)).stopped_at is not None,
        "the driver has stopped",
    )
    assert {"open_regular", "start", "remove", "prepare", "tail"} <= set(seen)
    reap_drivers()
    assert driver_watch._over == []
