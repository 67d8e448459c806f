"""A slot's wait for a processor, on files of the kernel's form and on none; and its memory."""

from itertools import groupby
from pathlib import Path

import pytest

from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.test_worker import WorkerHarness
from weir.protocol.driver_messages import DriverLoad
from weir.protocol.messages import SubtaskMetrics
from weir.worker.cpu_wait import (
    LOAD_WINDOW_NS,
    PRESSURE,
    SCHEDSTAT,
    CpuPressure,
    CpuWait,
    ThreadsLoad,
)
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


def pressed(total_us: int) -> str:
    return (
        f"some avg10=45.02 avg60=48.06 avg300=50.56 total={total_us}\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
    )


def test_the_pressure_is_the_growth_of_the_time_in_which_some_thread_waited(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    file.write_text(pressed(11_824_307_458))
    pressure = CpuPressure(file)
    assert pressure.lacked_ns() == 0
    with file.open("r+") as same:
        same.write(pressed(11_824_309_958))
    assert pressure.lacked_ns() == 2_500_000


@pytest.mark.parametrize("text", [None, "", "full avg10=0.00 total=7\n"])
def test_a_system_without_pressure_counts_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "cpu").write_text(text)
    assert CpuPressure(tmp_path / "cpu").lacked_ns() == 0


def test_this_systems_pressure_can_be_read() -> None:
    if not Path(PRESSURE).exists():
        pytest.skip("this kernel keeps no account of pressure")
    assert CpuPressure()._total_ns() > 0


def test_the_load_of_a_process_is_that_of_its_threads_in_the_window(tmp_path: Path) -> None:
    """Threads that begin or end in between count from then on, or until then."""
    clock = ManualClock()

    def thread(name: str, ran_ms: int, waited_ms: int) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "schedstat").write_text(f"{ran_ms}000000 {waited_ms}000000 7\n")

    thread("10", 100, 1_000)
    thread("11", 50, 0)
    load = ThreadsLoad(clock, tmp_path)
    assert load.measure() is None  # No time has passed.
    clock.ms += 1_000
    thread("10", 400, 1_600)
    thread("12", 5_000, 5_000)
    assert load.measure() == DriverLoad(1_000.0, 300.0, 600.0)
    clock.ms += LOAD_WINDOW_NS // 1_000_000  # What is older is out of the window.
    (tmp_path / "11" / "schedstat").unlink()
    (tmp_path / "11").rmdir()
    thread("12", 5_010, 5_020)
    assert load.measure() == DriverLoad(2_000.0, 10.0, 20.0)
    clock.ms += LOAD_WINDOW_NS // 1_000_000
    assert load.measure() == DriverLoad(2_000.0, 0.0, 0.0)


def test_the_longest_standstill_is_told_as_long_as_it_lies_in_the_window(tmp_path: Path) -> None:
    clock, thread = ManualClock(), tmp_path / "10"
    thread.mkdir()
    (thread / "schedstat").write_text("1000000 1000000 7\n")
    load = ThreadsLoad(clock, tmp_path)
    told = []
    for stood_ms in (None, 4_000, 1_500, *[None] * 8):
        clock.ms += stood_ms or 900
        if stood_ms is not None:
            load.note_standstill(stood_ms * 1_000_000)
        measured = load.measure()
        assert measured is not None
        told.append(measured.stood_ms)
    assert [stood_ms for stood_ms, _ in groupby(told)] == [0, 4_000, 1_500, 0]


def test_a_system_that_tells_of_no_threads_has_no_load(tmp_path: Path) -> None:
    clock = ManualClock()
    load = ThreadsLoad(clock, tmp_path / "none")
    clock.ms += 1_000
    assert load.measure() is None


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
