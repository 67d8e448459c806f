"""A cluster whose workers run another Python than the driver: told at once, with both versions."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
from pyspark import SparkContext

from tests.spark.conftest import Contexts
from tests.spark.harness import environment
from weir.errors import JobFailedError
from weir.spark.workers_check import check_workers

ONE = "local-cluster[1,2,1024]"
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if version != OWN]
LONGEST_S = 30.0  # Half the time that a job waits for slots.


def installed(version: str) -> Path | None:
    """A Python of this version, on the path or of pyenv."""
    on_path = which(f"python{version}")
    of_pyenv = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    for program in [*([Path(on_path)] if on_path else []), *sorted(of_pyenv)]:
        # A shim of pyenv is on the path for versions that it does not start.
        if subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0:
            return program
    return None


@pytest.fixture
def other() -> tuple[str, Path]:
    """Another Python of this machine, and its version."""
    for version in VERSIONS:
        if program := installed(version):
            return version, program
    pytest.skip("no other Python is installed")


@pytest.fixture
def cluster(contexts: Contexts, other: tuple[str, Path]) -> Iterator[SparkContext]:
    """A local cluster whose executor starts the other Python for its tasks."""
    context = contexts.at(ONE)
    own = context.pythonExec
    context.pythonExec = str(other[1])
    yield context
    context.pythonExec = own


def test_a_job_fails_at_once_with_both_versions(
    cluster: SparkContext, other: tuple[str, Path], tmp_path: Path
) -> None:
    env = environment(tmp_path / "checkpoints")
    env.from_collection([1, 2]).print()
    began = time.monotonic()
    with pytest.raises(JobFailedError) as failed:
        env.execute("mixed")
    assert time.monotonic() - began < LONGEST_S
    assert f"the workers run Python {other[0]} (as on 127.0.0.1)" in str(failed.value)
    assert f"the driver runs Python {OWN} ({sys.executable})" in str(failed.value)
    assert f"set PYSPARK_PYTHON, or spark.pyspark.python, to the path of a Python {OWN}" in str(
        failed.value
    )


def test_the_doctor_tells_it(cluster: SparkContext, other: tuple[str, Path]) -> None:
    (finding,) = check_workers(cluster.master, None)
    assert not finding.is_ok
    assert str(finding).startswith(f"wrong workers' Python: the workers run Python {other[0]} ")
    assert f"a Python {OWN} that all workers have" in str(finding)
