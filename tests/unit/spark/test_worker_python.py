import sys
from pathlib import Path

import pytest

from weir.errors import SlotError
from weir.spark.worker_python import check_worker_python

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
