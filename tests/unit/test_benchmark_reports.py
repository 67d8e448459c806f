"""Reports of benchmarks: kept and read again, united, compared, and marked beside other work."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks.alternating import united
from tests.benchmarks.other_work import OtherWork, look
from tests.benchmarks.report import Report, Row, show_changes

QUIET, BUSY = OtherWork(0.05, 0.0), OtherWork(0.1, 0.4)


def row(what: str, ratio: float) -> Row:
    return Row(
        what=what, unit="ms", weir=ratio, baseline=1.0, ratio=ratio, against="none",
        target="none", met=None,
    )  # fmt: skip


def report(*rows: Row, beside: OtherWork = QUIET) -> Report:
    return Report.made(rows, is_quick=False, load=0.5, beside={"hops": beside})


def test_a_report_is_read_as_it_was_saved(tmp_path: Path) -> None:
    made = report(row("a", 2.0), beside=BUSY)
    made.save(tmp_path / "one.json")
    assert Report.load_from(tmp_path / "one.json") == made
    document = json.loads((tmp_path / "one.json").read_text())
    del document["beside"]
    (tmp_path / "older.json").write_text(json.dumps(document))
    assert Report.load_from(tmp_path / "older.json").beside == {}


def test_of_several_reports_each_row_is_the_one_in_the_middle() -> None:
    reports = [report(row("a", a), row("b", b)) for a, b in [(1.0, 9.0), (5.0, 7.0), (2.0, 8.0)]]
    assert {row.what: row.ratio for row in united(reports).rows} == {"a": 2.0, "b": 8.0}


def test_changes_are_shown_by_ratio_and_work_beside_is_named() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    before = report(row("a", 2.0), row("gone", 1.0))
    show_changes(before, report(row("a", 3.0), row("b", 1.0), beside=BUSY), console)
    text = console.export_text()
    for wanted in ("+50%", "new", "not measured", "hops beside other work: processors 10% busy"):
        assert wanted in text
    assert text.count("beside other work") == 1


def test_the_work_of_others_is_seen() -> None:
    program = "while True: pass"
    loops = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    try:
        seen = look()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert seen.pressure >= 0.0
    assert seen.busy > 0.05
    assert QUIET.or_more(BUSY) == OtherWork(0.1, 0.4)
    assert (QUIET.is_little, BUSY.is_little) == (True, False)


@pytest.mark.parametrize("missing", [{}, {"rows": [{"what": "a"}]}])
def test_a_file_that_is_no_report_is_an_error(tmp_path: Path, missing: object) -> None:
    (tmp_path / "x.json").write_text(json.dumps(missing))
    with pytest.raises(ValueError, match="is no report of the benchmarks"):
        Report.load_from(tmp_path / "x.json")


def test_a_run_goes_on_only_with_a_report_of_its_kind() -> None:
    begun = report(row("a", 2.0))
    begun.check_resumable(is_quick=False)
    with pytest.raises(ValueError, match="--quick is False, this run's is True; begin anew"):
        begun.check_resumable(is_quick=True)
    for name, problem in (("version", "version"), ("machine", "machine"), ("python", "Python")):
        with pytest.raises(ValueError, match=f"the report's {problem} is another"):
            replace(begun, **{name: "another"}).check_resumable(is_quick=False)
