"""The network cuts a connection between the driver and a process of the job; the job comes back."""

import re
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.spark.harness import (
    Count,
    Cutter,
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

pytestmark = [pytest.mark.usefixtures("local")]

N = 1_500
RATE = 1_000.0
SLOT = 1
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("slot", f"slot {SLOT} on .* was lost"),
        ("worker", f"the worker process of slot {SLOT} .*"),
    ],
)
def test_a_job_comes_back_whose_driver_lost_the_connection_to_a(
    target: str, cause: str, tmp_path: Path
) -> None:
    cutter, heard = Cutter(target, index=SLOT), Recorder()
    env = environment(tmp_path / "checkpoints")
    with Listening(heard, cutter):
        result = collect(numbered(tagged_union(env, N, RATE)), "cut")
    assert cutter.killed is not None, "nothing was cut"
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
