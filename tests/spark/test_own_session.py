"""A session of Spark that the script started: there a task fails for good at its first failure."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.spark.harness import SESSION, Count, count, processes_of, wait_until_gone, wrong_numbers

N = 1_500
RATE = 1_000.0
RECOVERIES_MAX, ATTEMPTS_MAX = 2, 6  # Both slots are lost, twice if Spark has two jobs for them.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)
SCRIPT = """
    import json, os, signal, socket, sys
    from pathlib import Path
    import psutil
    from pyspark.sql import SparkSession
    from tests.processes import cut
    from tests.spark.harness import Listening, collect, environment, numbered, tagged_union
    from weir.protocol.events import CheckpointSettled, SlotChanged
    from weir.spark.cluster import SparkCluster

    spark = SparkSession.builder.master("local[4]").getOrCreate()
    loss, records, rate, directory = sys.argv[1:]
    clusters, pids, done = [], {}, []
    begin = SparkCluster.run

    def run(cluster, *arguments, **more):
        clusters.append(cluster)
        begin(cluster, *arguments, **more)

    SparkCluster.run = run

    def lose(event):
        if isinstance(event, SlotChanged) and event.registered:
            pids[event.slot_index] = event.pid
        elif isinstance(event, CheckpointSettled) and event.failure is None:
            done.append(event.checkpoint_id)
            if len(done) == 2 and loss == "killed":
                os.kill(pids[1], signal.SIGKILL)
            elif len(done) == 2 and loss == "driver":
                assert cut(psutil.Process()) > 2
            elif len(done) == 2:
                clusters[0]._slots[1].connection.socket.shutdown(socket.SHUT_RDWR)

    env = environment(Path(directory, "checkpoints"))
    with Listening(lose):
        result = collect(numbered(tagged_union(env, int(records), float(rate))), "own")
    recoveries = [[one.attempt, one.restored_checkpoint] for one in result.history.recoveries]
    told = {"rows": result.collected, "recoveries": recoveries, "spark": spark.range(10).count()}
    Path(directory, "told.json").write_text(json.dumps(told))
"""


@pytest.mark.parametrize("loss", ["killed", "cut", "driver"])
def test_a_job_comes_back_from_a_lost_slot_in_a_session_that_starts_no_task_again(
    loss: str, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of its connections cut, the driver gives Spark the job of the slots again."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv(SESSION, own := f"{session}/{loss}")
    script = tmp_path / "script.py"
    script.write_text(dedent(SCRIPT))
    command = [sys.executable, str(script), loss, str(N), str(RATE), str(tmp_path)]
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert 1 <= len(told["recoveries"]) <= RECOVERIES_MAX
    for attempt, restored in told["recoveries"]:
        assert 2 <= attempt <= 1 + ATTEMPTS_MAX
        assert restored >= 2
    assert count(told["rows"], N) == EXACT
    assert not wrong_numbers(told["rows"])
    assert told["spark"] == 10, "the session stays the script's"
    wait_until_gone(lambda: processes_of(own))
