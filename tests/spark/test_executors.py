"""Two and three executors: records cross between them, and jobs outlive them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.conftest import Contexts
from tests.spark.functions import ReadIn, WrittenIn, key_of
from tests.spark.harness import (
    Count,
    Freezer,
    Killer,
    Listening,
    assert_missed,
    change,
    collect,
    count,
    environment,
    executor_of,
    numbered,
    rows_of,
    tagged_union,
    to_files,
    wait_until_gone,
    wrong_numbers,
)
from tests.spark.test_local_copies import check_taken_over
from weir.channels.authority import EncryptedNetwork
from weir.protocol.deployment import Credentials
from weir.protocol.events import CheckpointSettled, JobEvent, SlotChanged, WorkerStarted

N = 1_500
RATE = 1_000.0
EXACT = Count(lost=0, duplicated=0, out_of_order=0)
TWO = "local-cluster[2,1,1024]"
THREE = "local-cluster[3,1,1024]"


class Placing:
    """Finds out in which executor's JVM each worker process runs."""

    def __init__(self) -> None:
        self.executors: dict[int, psutil.Process] = {}  # By pid of the worker.
        self._slots: dict[int, int] = {}

    def __call__(self, event: JobEvent) -> None:
        match event:
            case SlotChanged(_, slot_index, _, pid, True):
                self._slots[slot_index] = pid
            case WorkerStarted(_, _, slot_index, pid):
                self.executors[pid] = executor_of(self._slots[slot_index])


def command_line(process: psutil.Process) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def test_records_are_encrypted_where_the_pipeline_says_so(
    contexts: Contexts, tmp_path: Path
) -> None:
    """All of it over TLS, between executors too; no key is on a command line."""
    contexts.at(TWO)
    env = environment(tmp_path / "checkpoints", settings={"weir.network.security": "tls"})
    secrets: list[bytes] = []
    issue = EncryptedNetwork.issue

    def issued(network: EncryptedNetwork, *given: Any) -> Credentials:
        credentials = issue(network, *given)
        secrets.append(credentials.key)
        return credentials

    stream = tagged_union(env, 500, 2 * RATE).map(ReadIn()).key_by(key_of).process(WrittenIn())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncryptedNetwork, "issue", issued)
        result = collect(stream, "encrypted")
    assert count(result.collected, 500) == EXACT
    assert len(secrets) == 1 + 2 + 2  # The job master, its slots, and their worker processes.
    lines = [line for line in map(command_line, psutil.Process().children(recursive=True)) if line]
    assert any("CoarseGrained" in line for line in lines)
    assert not any("PRIVATE KEY" in line for line in lines)


def test_records_cross_between_the_processes_of_two_executors(
    contexts: Contexts, tmp_path: Path
) -> None:
    contexts.at(TWO)
    placing = Placing()
    env = environment(tmp_path / "checkpoints")
    stream = tagged_union(env, 500, 2 * RATE).map(ReadIn()).key_by(key_of).process(WrittenIn())
    with Listening(placing):
        result = collect(stream, "crossing")
    assert count(result.collected, 500) == EXACT
    assert len(set(placing.executors.values())) == 2
    crossed = {
        (placing.executors[sender], placing.executors[receiver])
        for *_, sender, receiver in result.collected
    }
    assert len(crossed) == 4, "each executor to itself and to the other"


def test_an_executor_killed_without_a_spare_slot(contexts: Contexts, tmp_path: Path) -> None:
    contexts.at(TWO)
    killer = Killer("executor")
    env = environment(tmp_path / "checkpoints")
    with Listening(killer):
        result = collect(numbered(tagged_union(env, N, RATE)), "executor")
    assert killer.killed is not None
    assert len(result.history.recoveries) == 1
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)


def test_the_copies_of_a_killed_executors_slot_are_taken_over(
    contexts: Contexts, tmp_path: Path
) -> None:
    contexts.at(TWO)
    check_taken_over(tmp_path, Killer("executor", index=1, after_checkpoints=4))


def test_an_executor_killed_with_a_spare_slot(contexts: Contexts, tmp_path: Path) -> None:
    contexts.at(THREE)
    killer = Killer("executor")
    env = environment(tmp_path / "checkpoints")
    change(env, spare_slots=1)
    with Listening(killer):
        result = collect(numbered(tagged_union(env, N, RATE)), "executor and spare")
    assert killer.killed is not None
    assert len(result.history.recoveries) == 1
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)


@dataclass(slots=True)
class FreezerAndKiller(Freezer):
    """Kills the executor of the spare slot as it freezes that of worker 0.

    Spark starts another, which gets its task from the others: the frozen one has it, too.
    """

    slots: set[int] = field(default_factory=set)  # The processes of all three.
    at_work: set[int] = field(default_factory=set)

    def __call__(self, event: JobEvent) -> None:
        match event:
            case SlotChanged(pid=pid, registered=True):
                self.slots.add(pid)
            case WorkerStarted(pid=pid):
                self.at_work |= {process.pid for process in psutil.Process(pid).parents()}
            case CheckpointSettled() if len(self.slots) < 3:
                return  # The spare slot is not there yet.
        Freezer.__call__(self, event)

    def freeze(self) -> None:
        Freezer.freeze(self)
        (spare,) = self.slots - self.at_work
        executor_of(spare).kill()


@pytest.mark.parametrize("kind", [Freezer, FreezerAndKiller])
def test_a_frozen_executor_that_comes_back_is_fenced(
    contexts: Contexts, tmp_path: Path, kind: type[Freezer]
) -> None:
    contexts.at(THREE)
    freezer = kind(whole_executor=True)
    output = tmp_path / "output"
    env = environment(
        tmp_path / "checkpoints",
        settings={"heartbeat.interval": "200 ms", "heartbeat.timeout": "6 s"},
    )
    change(env, spare_slots=1)
    to_files(numbered(tagged_union(env, 2 * N, RATE)), output)
    with Listening(freezer):
        result = env.execute("frozen")
    assert len(result.history.recoveries) == 1
    assert_missed(result.history.recoveries[0].cause)
    rows = rows_of(output)
    assert count(rows, 2 * N) == EXACT
    assert not wrong_numbers(rows)
    zombies = [p for p in freezer.survivors if p.pid not in freezer.lasting]
    assert len(zombies) >= 3, "supervisor, template and worker"
    wait_until_gone(lambda: [p for p in zombies if p.is_running()])
