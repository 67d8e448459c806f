import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark import SparkContext

from weir.errors import SlotError
from weir.spark.worker_python import check_worker_python, explained, same_as_driver, summary

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def python(directory: Path, version: str) -> str:
    """A program that says this version, as ``python -c`` does."""
    path = directory / "python"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return str(path)


def test_workers_of_another_python_are_refused_with_both_versions(tmp_path: Path) -> None:
    path = python(tmp_path, "3.8")
    with pytest.raises(SlotError) as refused:
        check_worker_python(path)
    assert str(refused.value) == (
        f"the workers run Python 3.8 ({path}, by PYSPARK_PYTHON), the driver runs Python {OWN} "
        f"({sys.executable}), and both must be the same: set PYSPARK_PYTHON={sys.executable}"
    )


def test_workers_of_the_drivers_version_pass(tmp_path: Path) -> None:
    check_worker_python(python(tmp_path, OWN))
    check_worker_python(sys.executable)


def test_a_python_that_cannot_run_is_left_to_spark(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    check_worker_python(str(broken))
    check_worker_python(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("master", "by_setting", "by_session", "within"),
    [
        ("local[4]", None, "python3", sys.executable),
        ("local-cluster[2,1,1024]", None, "python3", sys.executable),
        ("spark://host:7077", None, "python3", "python3"),
        ("local[4]", "python3", "python3", "python3"),
        ("local[4]", None, "/opt/python", "/opt/python"),
    ],
)
def test_workers_on_the_drivers_machine_run_its_python_unless_another_was_chosen(
    master: str,
    by_setting: str | None,
    by_session: str,
    within: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if by_setting is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", by_setting)
    spark = cast(SparkContext, SimpleNamespace(master=master, pythonExec=by_session))
    with same_as_driver(spark):
        assert spark.pythonExec == within
    assert spark.pythonExec == by_session, "the session's own jobs keep theirs"


# Errors of tasks, as Spark has them ---------------------------------------------------------------

NO_WEIR = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/spark/pyspark/serializers.py", line 483, in loads
    return cloudpickle.loads(obj, encoding=encoding)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'weir'
 SQLSTATE: 38000
\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1642)
"""
NO_PYTHON = """java.io.IOException: Cannot run program "/opt/python": error=2, No such file
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
"""
LOST = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/weir/spark/slot.py", line 179, in run
    raise SlotError("the connection to the job master was lost")
weir.errors.SlotError: the connection to the job master was lost

\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1642)
"""
KILLED = "TaskKilled (Weir: the slot is silent)"
OWN_CODE = LOST.replace(
    "weir.errors.SlotError: the connection to the job master was lost",
    "AttributeError: 'NoneType' object has no attribute 'run'",
)


def test_workers_without_weir_are_told_what_to_install_or_set() -> None:
    told = explained(NO_WEIR, "host-1")
    assert told.startswith(
        "the workers' Python (as on host-1) cannot load Weir: ModuleNotFoundError: No module named "
        f"'weir'. Install weir-streaming {metadata.version('weir-streaming')} there, or set "
        "PYSPARK_PYTHON, or spark.pyspark.python, to the path of a Python that has it"
    )
    assert explained(NO_WEIR) == told.replace(" (as on host-1)", "")


def test_a_python_that_workers_cannot_start_is_named() -> None:
    assert explained(NO_PYTHON, "host-1").startswith(
        "the workers cannot start their Python /opt/python (as on host-1), error=2, No such file: "
        "set PYSPARK_PYTHON"
    )


@pytest.mark.parametrize("message", [LOST, KILLED, OWN_CODE])
def test_other_errors_of_tasks_are_not_laid_on_the_python(message: str) -> None:
    assert explained(message, "host-1") == ""


def test_the_line_of_an_error_that_says_most() -> None:
    assert summary(LOST) == "weir.errors.SlotError: the connection to the job master was lost"
    assert summary(KILLED) == KILLED
    assert summary("\n") == ""
