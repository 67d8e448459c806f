"""The network cuts a connection between the driver and a process of the job; the job comes back."""

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.spark.harness import (
    Count,
    Listening,
    Recorder,
    collect,
    count,
    environment,
    numbered,
    tagged_union,
    wrong_numbers,
)
from tests.waiting import wait_until
from weir.protocol.events import CheckpointSettled, JobEvent, SlotChanged
from weir.spark.cluster import SparkCluster

pytestmark = [pytest.mark.usefixtures("local")]

N = 1_500
RATE = 1_000.0
SLOT = 1
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


@dataclass(slots=True)
class Cutter:
    """Cuts the connection to a slot, or to its worker process, at the second checkpoint."""

    target: str
    clusters: list[SparkCluster] = field(default_factory=list)
    completed: int = 0
    cut: list[int] = field(default_factory=list)  # Descriptors.

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, CheckpointSettled) and event.failure is None:
            self.completed += 1
            if self.completed == 2:
                (cluster,) = self.clusters
                peers = cluster._slots if self.target == "slot" else cluster._workers
                connection = peers[SLOT].connection
                self.cut.append(connection.fileno())
                connection.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("slot", f"slot {SLOT} on .* was lost"),
        ("worker", f"the worker process of slot {SLOT} .*"),
    ],
)
def test_a_job_comes_back_whose_driver_lost_the_connection_to_a(
    target: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter, heard = Cutter(target), Recorder()
    begin = SparkCluster.run

    def run(cluster: SparkCluster, *arguments: Any, **more: Any) -> None:
        cutter.clusters.append(cluster)
        begin(cluster, *arguments, **more)

    monkeypatch.setattr(SparkCluster, "run", run)
    env = environment(tmp_path / "checkpoints")
    with Listening(heard, cutter):
        result = collect(numbered(tagged_union(env, N, RATE)), "cut")
    assert len(cutter.cut) == 1
    (recovered,) = result.history.recoveries
    assert recovered.restored_checkpoint is not None
    assert re.search(cause, recovered.cause), recovered.cause
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    registered = [e for e in heard.events_of(SlotChanged) if e.registered and e.slot_index == SLOT]
    assert len(registered) == (2 if target == "slot" else 1), "Spark starts a lost slot anew"


def test_no_slot_is_started_again_for_a_driver_whose_loop_ended_by_an_error(
    tmp_path: Path,
) -> None:
    """A slot whose driver is gone fails, and Spark starts a task again that fails."""

    def fail(event: JobEvent) -> None:
        if isinstance(event, CheckpointSettled):
            raise LookupError("of a listener")

    env = environment(tmp_path / "checkpoints")
    with Listening(fail), pytest.raises(LookupError, match="of a listener"):
        collect(numbered(tagged_union(env, N, RATE)), "listener")
    spark = SparkContext._active_spark_context
    assert spark is not None
    wait_until(lambda: not spark.statusTracker().getActiveJobsIds(), "Spark's job has ended")
