"""Secrets handed to real processes: a small script stands where spark-submit would."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from controlplane.secrets import services as secrets
from jobs import operations, preview_processes
from jobs.drivers import child_processes, driver_files, launcher
from jobs.drivers.handed_secrets import PIPE_BYTES_MAX, VARIABLE, handed_secrets
from jobs.models import DriverStatus, Operation, OperationKind
from tests.database.jobs.builders import driver_of, reload, submitted
from tests.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.django_db

VALUE = "correct horse battery staple"
READS = "import sys; from weir.secrets import job_secrets as s; s.receive(); print(s.job_secrets())"
# A process between launcher and driver that closes the driver's descriptors, as Spark's JVM does.
# It stays after the driver has failed, to be looked at.
SUBMIT = """#!{python} -E
import subprocess, sys, time
sys.path[:0] = [{root!r}]
child = "import sys; sys.path[:0] = [{root!r}]; from weir.secrets import job_secrets as s; " \\
    "s.receive(['PASSWORD']); v = s.get_secret('PASSWORD'); print('digits', len(v), flush=True)"
subprocess.run([sys.executable, "-E", "-c", child], close_fds=True)
time.sleep(60)
"""


@pytest.fixture
def spark_submit(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    """Hands nothing on to its child; no process of it outlives the test."""
    script = tmp_path / "spark-submit"
    script.write_text(SUBMIT.format(python=sys.executable, root=os.getcwd()))
    script.chmod(0o755)
    settings.WEIR_SPARK_SUBMIT = str(script)
    yield script
    for child in list(child_processes._children.values()):
        child.kill()
        child.wait(timeout=TIMEOUT_S)
    child_processes._children.clear()


def shown_by(pid: int) -> bytes:
    """The parts of a process that others may read."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def test_a_driver_behind_another_process_gets_its_secrets(spark_submit: Path) -> None:
    secrets.store(None, "PASSWORD", VALUE)
    job = submitted(options={"secrets": ["PASSWORD"]})
    assert launcher.launch() == 1
    driver = driver_of(job)
    said = wait_until(
        lambda: "digits" in driver_files.tail(driver) and driver_files.tail(driver),
        lambda: f"the driver has its secret; the log: {driver_files.tail(driver)}",
    )
    assert f"digits {len(VALUE)}" in said
    assert driver.pid is not None
    assert VARIABLE.encode() in shown_by(driver.pid)
    assert VALUE.encode() not in shown_by(driver.pid)
    directory = driver_files.directory_of(job.pk, driver.number)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert directory / driver_files.JOB_FILE_NAME in files
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]


def test_a_job_without_secrets_gets_no_pipe(spark_submit: Path) -> None:
    job = submitted()
    assert launcher.launch() == 1
    driver = driver_of(job)
    assert driver.pid is not None
    assert VARIABLE.encode() not in shown_by(driver.pid)


def test_a_driver_whose_secret_is_gone_is_not_started(spark_submit: Path) -> None:
    secrets.store(None, "PASSWORD", VALUE)
    job = submitted(options={"secrets": ["PASSWORD"]})
    secrets.delete(None, "PASSWORD")
    assert launcher.launch() == 0
    driver = driver_of(job)
    first = job.drivers.earliest("number")
    assert "There is no secret PASSWORD; store it again." in first.cause
    assert driver.pid is None
    assert first.status == DriverStatus.LOST


def test_an_unreadable_secret_names_itself_and_the_setting(
    spark_submit: Path, settings: Settings
) -> None:
    secrets.store(None, "PASSWORD", VALUE)
    job = submitted(options={"secrets": ["PASSWORD"]})
    settings.WEIR_ENCRYPTION_KEYS = [b"b2xkLWtleS1vbGQta2V5LW9sZC1rZXktb2xkLWtleS0="]
    assert launcher.launch() == 0
    cause = job.drivers.earliest("number").cause
    assert "no key of WEIR_ENCRYPTION_KEYS reads the secret PASSWORD" in cause


def test_large_secrets_fit_and_the_launcher_never_waits_for_a_reader() -> None:
    names = [f"S{number}" for number in range(32)]
    for name in names:
        secrets.store(None, name, name[-1] * secrets.VALUE_BYTES_MAX)
    with handed_secrets(names) as handed:
        done = subprocess.run(
            [sys.executable, "-c", READS],
            env={**os.environ, **handed.environment},
            pass_fds=handed.descriptors,
            capture_output=True,
            check=True,
        )
    assert len(done.stdout) > 32 * secrets.VALUE_BYTES_MAX
    assert not [fd for fd in handed.descriptors if os.path.exists(f"/proc/self/fd/{fd}")]


def test_more_than_a_pipe_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"A": "x" * PIPE_BYTES_MAX}
    monkeypatch.setattr(secrets, "values_of", lambda names: values)
    with pytest.raises(OSError, match="at most 1,048,576 fit"), handed_secrets(["A"]):
        pass


def test_a_preview_gets_the_secrets_and_what_it_says_is_masked(tmp_path: Path) -> None:
    """By the command itself: the pipeline prints its secret and raises with it."""
    secrets.store(None, "PASSWORD", VALUE)
    done = previewed(
        tmp_path, "print('printed', secret)\nraise ValueError(f'the warehouse refuses {secret}')\n"
    )
    assert done.status == "failed"
    assert "printed ***" in done.error
    assert "the warehouse refuses ***" in done.error
    assert VALUE not in done.error


def test_the_answer_of_a_preview_is_masked_and_stays_a_document(tmp_path: Path) -> None:
    """The value is part of the names of the answer's fields, and of a path in its texts."""
    secrets.store(None, "PASSWORD", "restore")
    done = previewed(tmp_path, "env.from_collection([len(secret)]).print()\nenv.execute()\n")
    assert done.status == "succeeded", done.error
    assert done.result is not None
    assert done.result["would_restore"] is False
    assert "/no-such-***" in str(done.result["problems"])
    assert "no-such-restore" not in str(done.result)


def previewed(directory: Path, body: str) -> Operation:
    """A preview of a pipeline, which has its secret in a variable, once it has ended."""
    script = directory / "pipeline.py"
    script.write_text(
        "from weir.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "secret = env.get_secret('PASSWORD')\n" + body
    )
    asked: dict[str, Any] = {
        "kind": "restore",
        "restore": str(directory / "no-such-restore"),
        "pipeline": {"kind": "script", "target": str(script)},
        "options": {"secrets": ["PASSWORD"]},
    }
    operation = operations.begin(submitted(), OperationKind.PREVIEW, None, asked, key=None)
    try:
        done: Operation = wait_until(lambda: _ended(operation), "the preview has ended")
        return done
    finally:
        for child in preview_processes._children:
            child.kill()
            child.wait(timeout=TIMEOUT_S)
        preview_processes._children.clear()


def _ended(operation: Operation) -> Operation | None:
    preview_processes.tick()
    row: Operation = reload(operation)
    return row if row.ended_at is not None else None
