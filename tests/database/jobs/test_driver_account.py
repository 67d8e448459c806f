"""User code under another user than the launcher: what it gets, and what it cannot touch.

Two users of the system by number, of which neither has to exist: 65534 runs user code, 1 stands for
a service. Neither can read root's Python, so shell scripts stand where Spark and Python would.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from jobs import operations, preview_processes, uploads
from jobs.drivers import child_processes, driver_files, launcher, processes
from jobs.drivers.driver_account import driver_account
from jobs.models import Driver, DriverStatus, OperationKind
from tests.database.jobs.builders import driver_of, reload, submitted
from tests.services import reachable_directory
from tests.waiting import wait_until
from weir.storage.local import LocalStore

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user"),
]

DEADLINE_S = 120.0
USER_CODE, SERVICE, SHARED = 65534, 1, 65533
SUBMIT = """#!/bin/sh
# The job file is the last argument.
for job; do :; done
properties=$(dirname "$job")/spark.properties
try() { name=$1; shift; if "$@" > /dev/null 2>&1; then echo "$name yes"; else echo "$name no"; fi; }
echo "uid $(id -u) groups $(id -G) umask $(umask) directory $(basename "$PWD")"
grep NoNewPrivs /proc/self/status
try reads-job-file cat "$job"
try reads-properties cat "$properties"
try works-here touch here
try reads-log cat ../driver.log
try replaces-log mv here ../driver.log
try removes-log rm -f ../driver.log
try writes-log sh -c ': > ../driver.log'
try makes-files touch ../more
try lists-drivers ls ../../..
try reads-launcher cat /proc/$PPID/environ
try becomes-root kill -0 1
echo up
sleep 600 &
wait
"""


@pytest.fixture(autouse=True)
def account(settings: Settings) -> Iterator[Path]:
    """A launcher that drops to another user; directories that this user can pass through."""
    settings.WEIR_DRIVER_USER, settings.WEIR_DRIVER_GROUP = str(USER_CODE), str(SHARED)
    with reachable_directory() as home:
        settings.WEIR_DRIVERS = home / "drivers"
        settings.WEIR_UPLOADS = home / "uploads"
        script = home / "spark-submit"
        script.write_text(SUBMIT)
        script.chmod(0o755)
        settings.WEIR_SPARK_SUBMIT = str(script)
        yield home
        for session, child in child_processes._children.items():
            processes.end_session(*session, signal.SIGKILL)
            child.wait(DEADLINE_S)
        for child in preview_processes._children:
            child.kill()
            child.wait(DEADLINE_S)
        child_processes._children.clear()
        preview_processes._children.clear()


def launched() -> Driver:
    """A driver that has tried what it can do."""
    job = submitted(spark_conf={"spark.hadoop.password": "hunter2"})
    assert launcher.launch() == 1
    driver = driver_of(job)
    wait_until(lambda: driver_files.tail(driver).endswith("up\n"), "the driver has printed all")
    return driver


def test_driver_runs_as_another_user_and_has_only_its_own() -> None:
    driver = launched()
    first, *lines = driver_files.tail(driver).splitlines()
    assert first == f"uid {USER_CODE} groups {SHARED} umask 0002 directory work"
    done = dict(line.replace("NoNewPrivs:\t", "NoNewPrivs ").split() for line in lines[:-1])
    assert done == {
        "NoNewPrivs": "1",
        "reads-job-file": "yes",
        "reads-properties": "yes",
        "works-here": "yes",
        **dict.fromkeys(
            (
                *("reads-log", "replaces-log", "removes-log", "writes-log", "makes-files"),
                *("lists-drivers", "reads-launcher", "becomes-root"),
            ),
            "no",
        ),
    }


def test_what_is_given_to_one_driver_is_for_its_user_alone() -> None:
    directory = Path(launched().directory)
    for name in ("job.json", "spark.properties"):
        status = (directory / name).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (USER_CODE, 0o600)
    log = (directory / "driver.log").stat()
    assert (log.st_uid, log.st_mode & 0o777) == (0, 0o640)
    assert "hunter2" in (directory / "spark.properties").read_text()


def test_settings_of_spark_are_in_no_command_line_of_the_driver() -> None:
    driver = launched()
    assert driver.pid is not None
    for process in processes.session_of(driver.pid, driver.process_started_at or 0.0):
        assert b"hunter2" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_process_that_was_not_noted_is_found_by_its_note() -> None:
    """The launcher died right after the start; no environment of another user is read for it."""
    driver = launched()
    session = (driver.pid, driver.process_started_at)
    Driver.objects.filter(pk=driver.pk).update(
        pid=None, process_started_at=None, launch_expires_at="2000-01-01T00:00:00Z"
    )
    launcher.tick()
    assert (reload(driver).pid, reload(driver).process_started_at) == session


def test_driver_is_ended_and_its_temporary_files_are_deleted() -> None:
    driver = launched()
    scratch = driver_files.scratch_of(Path(driver.directory))
    inner = scratch / "deep"
    inner.mkdir()
    os.chown(inner, USER_CODE, SHARED)
    inner.chmod(0o700)
    Driver.objects.filter(pk=driver.pk).update(
        status=DriverStatus.ENDED, stop_requested_at="2000-01-01T00:00:00Z"
    )
    wait_until(lambda: launcher.tick() or reload(driver).stopped_at, "the driver has stopped")
    wait_until(lambda: not scratch.exists(), "its scratch files are deleted")
    assert processes.session_of(driver.pid or 0, driver.process_started_at or 0.0) == []


def test_preview_runs_as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "mv ../0.out ../1.out 2> /dev/null; given=$(cat ../arguments.json); "
        'printf \'{"uid": %s, "given": %s}\' "$(id -u)" "$given"'
    )
    monkeypatch.setattr(preview_processes, "commands_of", lambda _: [["sh", "-c", script]])
    given = {"kind": "restore", "options": {"parameters": {"key": "hunter2"}}}
    operation = operations.begin(submitted(), OperationKind.PREVIEW, None, given, key=None)
    wait_until(
        lambda: preview_processes.tick() or reload(operation).ended_at, "the operation has ended"
    )
    assert reload(operation).result == {"uid": USER_CODE, "given": {"key": "hunter2"}}
    wait_until(
        lambda: not preview_processes._directory(operation).exists(), "its directory is deleted"
    )


def test_uploads_are_read_by_the_shared_group_alone(account: Path) -> None:
    directory = account / "uploads"
    directory.mkdir(mode=0o2750)
    os.chown(directory, SERVICE, SHARED)
    directory.chmod(0o2750)
    artifact = uploads.store(None, "orders.py", [b"x = 1\n"])
    status = uploads.path_of(artifact).stat()
    assert (status.st_gid, status.st_mode & 0o777) == (SHARED, 0o640)


def test_services_delete_checkpoints_that_user_code_wrote(account: Path) -> None:
    """A directory that is setgid, umask 0002, and a group that both are in."""
    root = account / "checkpoints"
    root.mkdir()
    os.chown(root, SERVICE, SHARED)
    root.chmod(0o2770)
    store = LocalStore(root)

    def write() -> None:
        os.umask(0o002)
        store.put("job/chk-1/sub/state", b"state")
        assert store.create_if_absent("job/chk-1/manifest", b"{}")

    as_user(USER_CODE, [SHARED], write)
    assert (root / "job" / "chk-1").stat().st_uid == USER_CODE

    def look_and_delete() -> None:
        assert store.read("job/chk-1/manifest") == b"{}"
        store.delete("job/chk-1/manifest")
        store.delete_prefix("job/chk-1")

    as_user(SERVICE, [SERVICE, SHARED], look_and_delete)
    assert not (root / "job" / "chk-1").exists()


def as_user(uid: int, groups: list[int], act: Callable[[], None]) -> None:
    """Act in a fork of this process that has become another user."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setresgid(groups[0], groups[0], groups[0])
            os.setresuid(uid, uid, uid)
            act()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.parametrize(
    ("user", "group", "said"),
    [
        ("root", "", "must not be root"),
        ("daemon", "0", "must not be root"),
        ("mara-the-unknown", "", "no such user"),
        ("daemon", "no-such-group", "no such group"),
        ("4000000", "", "set WEIR_DRIVER_GROUP"),
        ("", "nogroup", "without WEIR_DRIVER_USER"),
    ],
)
def test_account_that_cannot_be_is_refused(
    user: str, group: str, said: str, settings: Settings
) -> None:
    settings.WEIR_DRIVER_USER, settings.WEIR_DRIVER_GROUP = user, group
    job = submitted()
    launcher.tick()
    assert driver_of(job).status == DriverStatus.LOST
    assert said in driver_of(job).cause


def test_launcher_that_may_not_switch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    job = submitted()
    launcher.tick()
    assert "this launcher does not run as root" in driver_of(job).cause


def test_named_user_brings_its_groups(settings: Settings) -> None:
    settings.WEIR_DRIVER_USER, settings.WEIR_DRIVER_GROUP = "daemon", ""
    account = driver_account()
    assert account is not None
    assert account.uid == account.groups[0] == 1
    assert 0 not in account.groups
    assert json.dumps(account.groups)
