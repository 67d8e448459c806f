"""Worker processes at the limit of their memory, and those that the kernel has killed for it."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.process.worker.fake_master import FakeMaster, fake_master, program, supervisor
from tests.unit.worker.test_cgroup import MOUNT_V2, Machine
from weir.channels.control_connection import ControlConnection
from weir.common import Types, WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.execution import capturing
from weir.datastream.functions import KeyedProcessFunction, RuntimeContext
from weir.graph.logical import JobGraph
from weir.ids import AttemptNumber
from weir.operators.sources import DataGeneratorSource
from weir.protocol.deployment import SlotRegistered, StopProcess, WorkerExited, WorkerReady
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged, SubtaskMetrics
from weir.protocol.slot_memory import MemoryLimit, MemorySource
from weir.state.descriptors import ValueStateDescriptor
from weir.worker.memory.watch import EXIT_OVER_LIMIT
from weir.worker.template import WORKER

LIMIT = MemoryLimit(260_000_000, MemorySource.SETTING)
BLOB_BYTES = 1_000_000


class Keep(KeyedProcessFunction):
    """Keeps a megabyte for each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor("blob", Types.STRING())
        self.blob = runtime_context.get_state(descriptor)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self.blob.update(f"{value:09}" * (BLOB_BYTES // 9))
        yield value


class Hoard(KeyedProcessFunction):
    """Takes, in one call that never ends, ever more."""

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        hoard = []
        while True:
            hoard.append(b"x" * BLOB_BYTES)
        yield value


class Tangle(KeyedProcessFunction):
    """Leaves a megabyte that is part of a cycle, in few objects, for each record."""

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        tangle: list[Any] = [b"x" * BLOB_BYTES]
        tangle.append(tangle)
        yield value


def graph_of(function: Callable[[], KeyedProcessFunction], rows_per_second: int) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = DataGeneratorSource(lambda index: index, rows_per_second=rows_per_second)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    numbers.key_by(lambda value: value).process(function()).uid("kept").print().uid("out")
    with capturing() as capture:
        env.execute("kept")
    return capture.jobs[0].graph


@contextmanager
def worker_of(
    graph: JobGraph, limit: MemoryLimit | None
) -> Iterator[tuple[FakeMaster, ControlConnection, WorkerReady]]:
    with fake_master() as master, supervisor(master, worker=WORKER) as process:
        assert process.pid
        slot = master.accept_slot(program(graph))
        worker, ready = master.start_worker(slot, memory=limit)
        groups = tuple((operator.uid, 128) for operator in graph.operators)
        master.deploy(worker, 1, ready.address, max_parallelism=groups)
        yield master, worker, ready


@pytest.mark.parametrize(("function", "rows"), [(Keep, 200), (Hoard, 1)])
def test_a_worker_above_its_limit_says_what_it_holds_and_ends(
    function: Callable[[], KeyedProcessFunction], rows: int
) -> None:
    with worker_of(graph_of(function, rows), LIMIT) as (master, _, ready):
        peak = 0

        def is_over() -> SubtaskChanged | None:
            nonlocal peak
            with suppress(psutil.NoSuchProcess):
                peak = max(peak, psutil.Process(ready.pid).memory_info().rss)
            failed = (m for _, m in master.unseen if isinstance(m, SubtaskChanged))
            return next((m for m in failed if m.status is SubtaskStatus.FAILED), None)

        failed = master.pump_until(is_over, "the worker fails")
        assert failed is not None
        assert "more than its limit of 260.0 MB (taskmanager.memory.process.size)" in failed.cause
        assert ("'blob' of kept-0" in failed.cause) is (function is Keep)
        assert str(failed.chain) == "kept-0"
        assert peak > LIMIT.limit_bytes
        _, exited = master.expect(WorkerExited)
        assert (exited.exit_code, exited.is_out_of_memory) == (EXIT_OVER_LIMIT, False)
        assert failed.cause in exited.stderr_tail


@pytest.mark.parametrize("limit", [LIMIT, None])
def test_a_worker_is_told_its_limit_for_its_caches(limit: MemoryLimit | None) -> None:
    with fake_master() as master, supervisor(master):
        slot = master.accept_slot(program(behaviour="tell_the_limit"))
        worker, ready = master.start_worker(slot, memory=limit)
        master.deploy(worker, 1, ready.address)
        master.expect_details(limit=None if limit is None else LIMIT.limit_bytes)


def test_a_worker_without_a_limit_and_one_below_it_go_on() -> None:
    for limit in (None, MemoryLimit(1_000_000_000, MemorySource.SETTING)):
        with worker_of(graph_of(Keep, 200), limit) as (master, worker, _):
            master.pump_until(
                lambda master=master: any(
                    isinstance(m, SubtaskMetrics) and m.memory_bytes > LIMIT.limit_bytes
                    for _, m in master.unseen
                ),
                "it holds more than the other one may",
            )
            master.send(worker, StopProcess(AttemptNumber(1)))
            assert master.expect(WorkerExited)[1].exit_code == 0


def test_a_worker_without_a_limit_collects_garbage_in_cycles_before_it_is_much() -> None:
    with worker_of(graph_of(Tangle, 400), None) as (master, worker, _):

        def told() -> list[SubtaskMetrics]:
            return [m for _, m in master.unseen if isinstance(m, SubtaskMetrics)]

        def has_left_much() -> bool:
            taken = (m.records_in for m in told() if str(m.chain) == "kept-0")
            return max(taken, default=0) * BLOB_BYTES > 2_000_000_000

        master.pump_until(has_left_much, "it left two gigabytes")
        assert max(m.memory_bytes for m in told()) < 600_000_000
        master.send(worker, StopProcess(AttemptNumber(1)))
        assert master.expect(WorkerExited)[1].exit_code == 0


def test_a_limit_below_what_the_program_takes_ends_the_job() -> None:
    limit = MemoryLimit(20_000_000, MemorySource.SETTING)  # Below what the setting allows.
    with worker_of(graph_of(Keep, 1), limit) as (master, _, _):
        _, failed = master.expect(SubtaskChanged, details={"restarts_help": False})
        assert "before its first record" in failed.cause


@pytest.mark.parametrize(("kills", "is_out_of_memory"), [(5, True), (4, False)])
def test_a_kill_is_the_kernels_where_its_cgroup_counts_one_more(
    tmp_path: Path, kills: int, is_out_of_memory: bool
) -> None:
    machine = Machine(tmp_path)
    machine.process("0::/\n", MOUNT_V2.format(top="/"))
    machine.v2(".", "900000000", anon=40, kills=4)
    with fake_master() as master, supervisor(master, root=str(tmp_path)):
        slot, registered = master.expect(SlotRegistered)
        assert registered.memory is not None
        assert (registered.memory.limit_bytes, registered.memory.held_bytes) == (900_000_000, 47)
        master.unseen.append((slot, registered))
        slot = master.accept_slot(program())
        _, ready = master.start_worker(slot)
        machine.v2(".", "900000000", anon=40, kills=kills)
        os.kill(ready.pid, signal.SIGKILL)
        _, exited = master.expect(WorkerExited)
        assert (exited.exit_code, exited.is_out_of_memory) == (-signal.SIGKILL, is_out_of_memory)


def test_another_end_is_not_the_kernels_though_its_cgroup_counts_one_more(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.process("0::/\n", MOUNT_V2.format(top="/"))
    machine.v2(".", "max", kills=4)
    with fake_master() as master, supervisor(master, root=str(tmp_path)):
        slot = master.accept_slot(program())
        _, ready = master.start_worker(slot)
        machine.v2(".", "max", kills=5)
        os.kill(ready.pid, signal.SIGABRT)
        _, exited = master.expect(WorkerExited)
        assert (exited.exit_code, exited.is_out_of_memory) == (-signal.SIGABRT, False)
