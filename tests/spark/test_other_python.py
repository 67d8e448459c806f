"""A cluster whose workers run another Python than the driver: told at once, with both versions."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.spark.conftest import Contexts
from tests.spark.harness import environment
from weir.errors import JobFailedError
from weir.spark.workers_check import check_workers

ONE = "local-cluster[1,2,1024]"
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = f"{sys.version_info.major}.{sys.version_info.minor - 1}"
LONGEST_S = 30.0  # Half the time that a job waits for slots.
# Spark asks a worker's Python for its version before all else. It need not be installed for that.
CLAIM = """
import sys
from collections import namedtuple
fields = ("major", "minor", "micro", "releaselevel", "serial")
now = sys.version_info
sys.version_info = namedtuple("version_info", fields)(now[0], now[1] - 1, *now[2:])
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A Python that says to be of another version."""
    (tmp_path / "sitecustomize.py").write_text(CLAIM)
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}:"$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def cluster(contexts: Contexts, other: Path) -> Iterator[SparkContext]:
    """A local cluster whose executor starts the other Python for its tasks."""
    context = contexts.at(ONE)
    own = context.pythonExec
    context.pythonExec = str(other)
    yield context
    context.pythonExec = own


def test_a_job_fails_at_once_with_both_versions(cluster: SparkContext, tmp_path: Path) -> None:
    env = environment(tmp_path / "checkpoints")
    env.from_collection([1, 2]).print()
    began = time.monotonic()
    with pytest.raises(JobFailedError) as failed:
        env.execute("mixed")
    assert time.monotonic() - began < LONGEST_S
    told = rf"the workers run Python {OTHER} \(as on (127\.0\.0\.1|localhost)\), the driver runs"
    assert re.search(told, str(failed.value)), failed.value
    assert f"the driver runs Python {OWN} ({sys.executable})" in str(failed.value)
    assert f"set PYSPARK_PYTHON, or spark.pyspark.python, to the path of a Python {OWN}" in str(
        failed.value
    )


def test_the_doctor_tells_it(cluster: SparkContext) -> None:
    (finding,) = check_workers(cluster.master, None)
    assert not finding.is_ok
    assert str(finding).startswith(f"wrong workers' Python: the workers run Python {OTHER} ")
    assert f"a Python {OWN} that all workers have" in str(finding)
