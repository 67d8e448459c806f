"""A job on Spark whose driver and workers run as another user than the services."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.plane import Plane, wait_for
from tests.services import reachable_directory

USER_CODE, SHARED = 1, 65533
SYSTEM_PYTHON = Path("/usr/bin/python3")


def is_fit() -> bool:
    """Whether another user can run a Python of this version: root's own may lie in its home."""
    if os.geteuid() != 0 or not SYSTEM_PYTHON.exists():
        return False
    said = subprocess.run([SYSTEM_PYTHON, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.startswith(f"Python {sys.version_info[0]}.{sys.version_info[1]}.")


pytestmark = [
    pytest.mark.skipif(not is_fit(), reason="needs root and a Python that another user can run"),
]


@pytest.fixture
def plane() -> Iterator[Plane]:
    """A control plane whose launcher drops; storage that the group shares."""
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    packages = Path(pyspark.origin).parent.parent
    with reachable_directory() as directory:
        storage = directory / "checkpoints"
        storage.mkdir()
        os.chown(storage, 0, SHARED)
        storage.chmod(0o2770)
        environment = {
            "WEIR_DRIVER_USER": str(USER_CODE),
            "WEIR_DRIVER_GROUP": str(SHARED),
            "WEIR_CHECKPOINT_ROOT": str(storage),
            "WEIR_SPARK_PYTHON": str(SYSTEM_PYTHON),
            "PYTHONPATH": os.pathsep.join((os.getcwd(), str(packages))),
        }
        plane = Plane.start(directory / "home", environment)
        try:
            yield plane
        finally:
            plane.stack.stop()
            plane.stack.postgres.remove()


def test_job_runs_and_finds_no_secret_of_the_services(plane: Plane, tmp_path: Path) -> None:
    secret = plane.stack.home / "secret-key"
    assert secret.read_text()
    submission = {
        "name": "curious",
        "pipeline": {"kind": "module", "module": "tests.e2e.curious"},
        "parallelism": 1,
        "parameters": {"secrets": str(secret)},
    }
    operation = plane.client.post("jobs", submission, key=str(uuid.uuid4()))
    job = plane.job(operation["job"], tmp_path)
    wait_for(lambda: job.get("")["status"] in ("finished", "failed"), "the job's end", 180.0)
    log = plane.stack.home / "drivers" / operation["job"] / "1" / "driver.log"
    said = log.read_text()
    assert job.get("")["status"] == "finished", said
    line = next(line for line in said.splitlines() if line.startswith("I am"))
    match = re.fullmatch(r"I am (\d+); environments of services: 0 of (\d+); key: (.*)", line)
    assert match is not None, line
    assert int(match[1]) == USER_CODE
    assert int(match[2]) > 6  # The occasion: servers, services and the driver's own.
    assert match[3] == "b'Permission denied'"
    assert "my log: Permission denied" in said
    storage = Path(plane.stack.environment["WEIR_CHECKPOINT_ROOT"])
    files = list(storage.rglob("*"))
    assert {path.stat().st_gid for path in files} <= {SHARED}
    assert USER_CODE in {path.stat().st_uid for path in files}
    assert all(path.stat().st_mode & 0o020 for path in files)  # So that services may delete them.
