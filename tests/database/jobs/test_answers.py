"""Questions that processes answer: one answer, one end, and nothing left behind."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from controlplane.base import clock
from jobs import operations, preview_processes
from jobs.drivers import processes
from jobs.drivers.spark_command import environment_of
from jobs.models import Job, Operation, OperationKind
from tests.database.jobs.builders import pass_time, reload, submitted
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process outlives its test."""
    yield
    for child in preview_processes._children:
        if child.poll() is None:
            child.kill()
        child.wait(timeout=60)
    preview_processes._children.clear()


def asked(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> Operation:
    """A question to which these scripts are the answer."""
    commands = [[sys.executable, "-c", script] for script in scripts]
    monkeypatch.setattr(preview_processes, "commands_of", lambda _: commands)
    return operations.begin(submitted(), OperationKind.PREVIEW, None, {"kind": "restore"}, key=None)


def done(operation: Operation) -> Operation:
    """The operation once it has ended."""

    def has_ended() -> bool:
        preview_processes.tick()
        return reload(operation).ended_at is not None

    wait_until(has_ended, "the question is answered")
    return reload(operation)  # type: ignore[no-any-return]


def directory(operation: Operation) -> Path:
    return preview_processes._directory(operation)


def test_answer_is_the_document_that_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = done(asked(monkeypatch, "print('{\"would_restore\": true}'); raise SystemExit(1)"))
    assert (operation.status, operation.result) == ("succeeded", {"would_restore": True})
    assert operation.progress is None
    wait_until(lambda: not directory(operation).exists(), "its directory is deleted")


def test_no_answer_fails_with_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = done(asked(monkeypatch, "raise SystemExit('weir: there is no such thing')"))
    assert (operation.status, operation.error) == ("failed", "weir: there is no such thing")


def test_process_that_takes_too_long_is_ended_with_its_children(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.WEIR_PREVIEW_TIMEOUT_MS = 1_000
    script = "import subprocess; subprocess.run(['sleep', '60'])"
    operation = asked(monkeypatch, script)
    preview_processes.tick()
    ((pid, started_at),) = reload(operation).progress["processes"]
    assert done(operation).error == "its process was not done within 1 s, and was ended"
    wait_until(lambda: not processes.session_of(pid, started_at), "its processes have ended")


def test_flood_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview_processes, "ANSWER_BYTES_MAX", 1 << 20)
    operation = done(asked(monkeypatch, "while True: print('x' * 100_000, flush=True)"))
    assert "more than 1 MiB" in operation.error


def test_process_of_an_operation_that_ended_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = asked(monkeypatch, "import time; time.sleep(600)")
    preview_processes.tick()
    ((pid, started_at),) = reload(operation).progress["processes"]
    pass_time(operation, 10_000, "deadline_at")
    operations.expire_due()
    preview_processes.tick()
    wait_until(lambda: not processes.session_of(pid, started_at), "its processes have ended")
    assert reload(operation).status == "expired"
    assert reload(operation).progress is None


def test_process_that_was_killed_fails_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = asked(monkeypatch, "import time; time.sleep(600)")
    preview_processes.tick()
    ((pid, _),) = reload(operation).progress["processes"]
    os.kill(pid, 9)
    assert "was it killed" in done(operation).error


def test_launcher_that_is_started_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = asked(monkeypatch, "import time; time.sleep(0.3); print('{}')")
    preview_processes.tick()
    child = preview_processes._children.pop()  # Its parent is gone.
    assert done(operation).status == "succeeded"
    child.wait(timeout=60)


def test_question_of_a_lost_machine_is_asked_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operation = asked(monkeypatch, "print('{}')")
    long_ago = (clock.now() - clock.milliseconds(60_000)).isoformat()
    progress: dict[str, Any] = {
        "host": "another container",
        "boot": processes.boot_id(),
        "processes": [],
        "until": long_ago,
        "tries": 1,
    }
    Operation.objects.filter(pk=operation.pk).update(progress=progress)
    preview_processes.tick()
    assert reload(operation).progress == progress  # It is another machine's.
    assert preview_processes.forget_lost() == 1
    assert done(operation).status == "succeeded"

    second = asked(monkeypatch, "print('{}')")
    Operation.objects.filter(pk=second.pk).update(progress={**progress, "tries": 2})
    preview_processes.forget_lost()
    assert "lost" in done(second).error


def test_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [asked(monkeypatch, "import time; time.sleep(0.2); print('{}')") for _ in range(3)]
    preview_processes.tick()
    statuses = [reload(operation).status for operation in several]
    assert statuses == ["running", "running", "pending"]
    for operation in several:
        assert done(operation).status == "succeeded"


def test_processes_get_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://mara:secret@here/db")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("WEIR_ANYTHING", "x")
    environment = environment_of("operation/1")
    assert not environment.keys() & {"DATABASE_URL", "PGPASSWORD", "WEIR_ANYTHING"}
    assert environment["WEIR_DRIVER"] == "operation/1"


@pytest.mark.parametrize(("status", "is_over"), [("running", False), ("failed", True)])
def test_commands_say_if_the_origin_is_over(status: str, is_over: bool) -> None:
    origin = submitted()
    ended_at = clock.now() if is_over else None
    Job.objects.filter(pk=origin.pk).update(status=status, ended_at=ended_at)
    given = {
        "kind": "restore",
        "restore": "/c/j/chk-7",
        "origin": origin.pk,
        "pipeline": {"kind": "script", "target": "/s/p.py", "artifact_digest": None},
        "options": {},
    }
    ((*command,),) = preview_processes.commands_of(
        Operation(kind=OperationKind.PREVIEW, parameters=given)
    )
    assert ("--origin-is-over" in command) is is_over


def test_commands_say_all_that_was_asked() -> None:
    given = {
        "kind": "restore",
        "restore": "/c/j/chk-7",
        "pipeline": {"kind": "script", "target": "/s/p.py", "artifact_digest": None},
        "options": {
            "parallelism": 3,
            "allow_non_restored_state": True,
            "parameters": {"output": "-o=/x"},
        },
    }
    operation = Operation(kind=OperationKind.PREVIEW, parameters=given)
    ((*_, weir, preview, restore, as_json, wide, allow, parameters, end, script),) = (
        preview_processes.commands_of(operation)
    )
    assert [weir, preview, restore, as_json] == [
        "weir",
        "preview",
        "--restore=/c/j/chk-7",
        "--json",
    ]
    assert [wide, allow] == ["--parallelism=3", "--allow-non-restored-state"]
    assert [parameters, end, script] == ["--args-file=../arguments.json", "--", "/s/p.py"]
