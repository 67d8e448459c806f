"""Threads that are ready to run on a processor that others have, and the kernel's count of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.process.worker.fake_master import REPOSITORY, fake_master, program, supervisor
from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.execution import capturing
from weir.graph.logical import JobGraph
from weir.ids import AttemptNumber
from weir.operators.sources import DataGeneratorSource
from weir.protocol.deployment import StopProcess, WorkerExited
from weir.protocol.messages import SubtaskMetrics
from weir.worker.template import WORKER

WAIT_MS = 200

# Burns one processor; says once that it has waited for so long, or that it does not, and goes on.
BURN = f"""
import os, sys, time
from weir.worker.cpu_wait import CpuWait
os.sched_setaffinity(0, {{int(sys.argv[1])}})
print("pinned", flush=True)
sys.stdin.readline()
wait = CpuWait()
began, worked = time.monotonic_ns(), time.thread_time_ns()
while wait.waited_ns() < {WAIT_MS}_000_000 and time.monotonic_ns() < began + 60_000_000_000:
    for _ in range(10_000):
        pass
worked, waited = time.thread_time_ns() - worked, wait.waited_ns()
print(waited, worked, time.monotonic_ns() - began, flush=True)
while True:
    pass
"""


@contextmanager
def burner(cpu: int) -> Iterator["subprocess.Popen[str]"]:
    """A process that burns one processor from a line on its input on."""
    process = subprocess.Popen(
        [sys.executable, "-c", BURN, str(cpu)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "pinned\n"
            yield process
        finally:
            process.kill()


def start(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def one_cpu() -> int:
    return min(os.sched_getaffinity(0))


def test_two_threads_on_one_processor_wait_for_as_long_as_they_do_not_work() -> None:
    """Neither of them sleeps: a moment is either work or waiting, however busy the machine is."""
    with burner(one_cpu()) as one, burner(one_cpu()) as other:
        start(one)
        start(other)
        for process in (one, other):
            assert process.stdout is not None
            waited, worked, passed = map(int, process.stdout.readline().split())
            assert waited >= WAIT_MS * 1_000_000
            assert worked > 0
            assert 0.8 * passed < waited + worked < 1.1 * passed


def endless() -> JobGraph:
    """A pipeline that always has work."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = DataGeneratorSource(lambda index: index)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    numbers.filter(lambda value: value < 0).rebalance().print()
    with capturing() as capture:
        env.execute("endless")
    return capture.jobs[0].graph


def test_a_worker_reports_its_memory_and_the_wait_of_its_loops_thread() -> None:
    graph = endless()
    with fake_master() as master, supervisor(master, worker=WORKER), ExitStack() as stack:
        slot = master.accept_slot(program(graph))
        worker, ready = master.start_worker(slot)
        groups = tuple((operator.uid, 128) for operator in graph.operators)
        master.deploy(worker, 1, ready.address, max_parallelism=groups)
        _, first = master.expect(SubtaskMetrics)
        resident = psutil.Process(ready.pid).memory_info().rss
        assert 0.5 * resident < first.memory_bytes < 2 * resident
        assert first.cpu_wait_ms < first.busy_ms + first.idle_ms + first.back_pressured_ms

        rival = stack.enter_context(burner(one_cpu()))
        os.sched_setaffinity(ready.pid, {one_cpu()})  # The process's first thread: the loop.
        start(rival)
        waits: list[float] = []
        while not waits or waits[-1] < waits[0] + WAIT_MS:
            _, report = master.expect(SubtaskMetrics)
            waits.append(report.cpu_wait_ms)
        assert waits == sorted(waits)
        stat = Path(f"/proc/{ready.pid}/task/{ready.pid}/schedstat").read_text()
        assert waits[-1] <= int(stat.split()[1]) / 1e6
        master.send(worker, StopProcess(AttemptNumber(1)))
        assert master.expect(WorkerExited)[1].exit_code == 0
