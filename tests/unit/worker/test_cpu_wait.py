"""A slot's wait for a processor, on files of the kernel's form and on none; and its memory."""

from pathlib import Path

import pytest

from tests.unit.worker.test_worker import WorkerHarness
from weir.protocol.messages import SubtaskMetrics
from weir.worker.cpu_wait import SCHEDSTAT, CpuWait
from weir.worker.metrics_reports import INTERVAL_NS


def test_the_wait_is_the_growth_of_the_second_number(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("18446744073709551615 7000 18446744073709551615\n")
    wait = CpuWait(file)
    assert wait.waited_ns() == 0
    with file.open("r+") as same:  # The kernel's file is the same one, with other numbers.
        same.write("18446744073709551615 9500 ")
    assert wait.waited_ns() == 2_500


def test_a_system_without_the_file_counts_nothing(tmp_path: Path) -> None:
    assert CpuWait(tmp_path / "none").waited_ns() == 0


def test_this_system_has_the_file() -> None:
    """Or the tests of a starved thread would be about nothing."""
    _, waited, turns = map(int, Path(SCHEDSTAT).read_text().split())
    assert (waited >= 0, turns > 0) == (True, True)


@pytest.mark.parametrize("waited_ns", [None, 2_500_000])
def test_all_subtasks_of_a_slot_report_the_wait_of_its_loop(waited_ns: int | None) -> None:
    """Without a reader, as in a simulation, it is 0."""
    readings: list[int] = []

    def read() -> int:
        readings.append(waited_ns or 0)
        return readings[-1]

    harness = WorkerHarness(cpu_wait_ns=None if waited_ns is None else read)
    harness.deploy()
    harness.run()
    harness.clock.ms += INTERVAL_NS // 1_000_000
    harness.run()
    reports = [report for report in harness.reports if isinstance(report, SubtaskMetrics)]
    assert [str(report.chain) for report in reports] == ["source-0", "sink-0"]
    assert [report.cpu_wait_ms for report in reports] == [0 if waited_ns is None else 2.5] * 2
    assert len(readings) == (0 if waited_ns is None else 1)  # Once for all of them.
    assert {report.busy_ms + report.idle_ms for report in reports} == {500}


@pytest.mark.parametrize("memory_bytes", [None, 300_000_000])
def test_all_subtasks_of_a_slot_report_the_memory_of_its_process(memory_bytes: int | None) -> None:
    """Without a reader, as in a simulation, it is 0."""
    readings: list[int] = []

    def read() -> int:
        readings.append(memory_bytes or 0)
        return readings[-1]

    harness = WorkerHarness(memory_bytes=None if memory_bytes is None else read)
    harness.deploy()
    harness.run()
    harness.clock.ms += INTERVAL_NS // 1_000_000
    harness.run()
    reports = [report for report in harness.reports if isinstance(report, SubtaskMetrics)]
    assert [report.memory_bytes for report in reports] == [memory_bytes or 0] * 2
    assert len(readings) == (0 if memory_bytes is None else 1)  # Once for all of them.
