"""Workers whose Python is another version, has no Weir or is not there: told at once."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.spark.conftest import Contexts
from tests.spark.harness import environment
from tests.spark.test_driver import Place, driver
from weir.errors import JobFailedError
from weir.spark.workers_check import check_workers

ONE = "local-cluster[1,2,1024]"
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = f"{sys.version_info.major}.{sys.version_info.minor - 1}"
HERE = r"(127\.0\.0\.1|localhost)"
LONGEST_S = 30.0  # Half the time that a job waits for slots.
# Spark asks a worker's Python for its version before all else. It need not be installed for that.
CLAIM = """
import sys
from collections import namedtuple
fields = ("major", "minor", "micro", "releaselevel", "serial")
now = sys.version_info
sys.version_info = namedtuple("version_info", fields)(now[0], now[1] - 1, *now[2:])
"""
# Another one does not find Weir, though it could.
LACK = """
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "weir":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Lacking())
"""


def python(tmp_path: Path, begins_with: str) -> Path:
    """A Python that runs this first."""
    (tmp_path / "sitecustomize.py").write_text(begins_with)
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}:"$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def cluster(contexts: Contexts) -> Iterator[SparkContext]:
    """A local cluster whose executor may be given another Python for its tasks."""
    context = contexts.at(ONE)
    own = context.pythonExec
    yield context
    context.pythonExec = own


def cause_of(tmp_path: Path) -> str:
    """The cause for which a job fails at once."""
    env = environment(tmp_path / "checkpoints")
    env.from_collection([1, 2]).print()
    began = time.monotonic()
    with pytest.raises(JobFailedError) as failed:
        env.execute("mixed")
    assert time.monotonic() - began < LONGEST_S
    return str(failed.value)


def test_a_job_fails_at_once_with_both_versions(cluster: SparkContext, tmp_path: Path) -> None:
    cluster.pythonExec = str(python(tmp_path, CLAIM))
    cause = cause_of(tmp_path)
    told = rf"the workers run Python {OTHER} \(as on {HERE}\), the driver runs"
    assert re.search(told, cause), cause
    assert f"the driver runs Python {OWN} ({sys.executable})" in cause
    assert f"set PYSPARK_PYTHON, or spark.pyspark.python, to the path of a Python {OWN}" in cause


def test_a_job_fails_at_once_where_the_workers_have_no_weir(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(python(tmp_path, LACK)))
    began, place = time.monotonic(), Place(tmp_path)
    with driver(session, place) as job:
        assert job.end() == 1
    assert time.monotonic() - began < LONGEST_S
    told = rf"the workers' Python \(as on {HERE}\) cannot load Weir: ModuleNotFoundError"
    assert re.search(told, (tmp_path / "driver.log").read_text())


def test_a_job_fails_at_once_where_the_workers_python_is_not_there(
    cluster: SparkContext, tmp_path: Path
) -> None:
    cluster.pythonExec = str(tmp_path / "none")
    cause = cause_of(tmp_path)
    told = rf"the workers cannot start their Python {tmp_path}/none \(as on {HERE}\), error=2"
    assert re.search(told, cause), cause


def test_the_doctor_tells_it(cluster: SparkContext, tmp_path: Path) -> None:
    cluster.pythonExec = str(python(tmp_path, CLAIM))
    (finding,) = check_workers(cluster.master, None)
    assert not finding.is_ok
    assert str(finding).startswith(f"wrong workers' Python: the workers run Python {OTHER} ")
    assert f"a Python {OWN} that all workers have" in str(finding)
