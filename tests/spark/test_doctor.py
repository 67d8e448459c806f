"""``weir doctor`` asks the workers of a real Spark."""

from pathlib import Path

import pytest
from pyspark import SparkContext

from weir.spark.workers_check import check_workers


@pytest.mark.usefixtures("nothing_left")
def test_the_workers_of_a_master_report(local: SparkContext, tmp_path: Path) -> None:
    findings = list(check_workers(local.master, str(tmp_path)))
    assert [str(finding) for finding in findings if not finding.is_ok] == []
    names = [finding.name for finding in findings]
    assert names[:4] == ["workers", "workers' packages", "workers' way here", "workers' storage"]
    assert list(tmp_path.iterdir()) == []


def test_the_master_in_process_has_no_workers() -> None:
    assert list(check_workers("in-process", None)) == []
