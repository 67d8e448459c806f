"""A machine of a standalone cluster on which the checkpoint storage is not mounted."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.spark.harness import SESSION
from tests.spark.test_driver import Place, driver
from tests.spark.test_outage import RATE, Cluster, N, ends_exactly
from tests.waiting import wait_until

PIPELINE = """
from pathlib import Path
from tests.spark.pipeline import build
from weir.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.configure({
    "execution.checkpointing.data-inline-threshold": "1 b",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
})
env.enable_checkpointing(300)
output = Path(env.get_job_parameter("output", ""))
build(env, output, %d, %f, hurry=output.with_name("hurry"))
env.execute("unmounted")
"""
# The directory that each process works in: the driver's is the test's, an executor's its own.
STORAGE = "/proc/self/cwd/checkpoints"
UNSEEN = "is not the job's checkpoint storage on"


def test_no_checkpoint_completes_of_files_that_lie_in_another_directory_than_its_manifest(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be missing after any failure, and the checkpoints before them deleted by then.

    Nor are they taken for damaged where they are not seen.
    """
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    environment = {**os.environ, SESSION: f"{session}/cluster", "PYTHONPATH": os.getcwd()}
    cluster, place = Cluster(environment, tmp_path), Place(tmp_path)
    place.checkpoints.mkdir()
    (tmp_path / "unmounted.py").write_text(PIPELINE % (N, RATE))
    with cluster.running("master", "master.Master"):
        master = wait_until(lambda: cluster.address("master"), "the master is there")
        options = ("--master", master, "--parallelism", "2", "--storage", STORAGE)
        script = str(tmp_path / "unmounted.py")
        with (
            cluster.machine("machine", master),
            driver(session, place, *options, script=script, directory=tmp_path) as job,
        ):

            def failed() -> list[str]:
                settled = job.told_of("CheckpointSettled")
                return [event["cause"] for event in settled if event["failure"] is not None]

            wait_until(lambda: len(failed()) > 2, "checkpoints fail")
            assert all(UNSEEN in cause for cause in failed())
            assert not job.told_of("CheckpointSettled", failure=None)
            (executor,) = (tmp_path / "work").glob("app-*/*")
            mounted = executor / "checkpoints"
            assert not mounted.exists()
            mounted.symlink_to(place.checkpoints)
            wait_until(
                lambda: len(job.told_of("CheckpointSettled", failure=None)) > 2,
                "checkpoints complete once it is mounted",
            )

            mounted.unlink()
            os.kill(job.told_of("WorkerStarted")[0]["pid"], signal.SIGKILL)
            wait_until(
                lambda: [
                    event["cause"]
                    for event in job.told_of("JobChanged", status="failing")
                    if UNSEEN in event["cause"]
                ],
                "nothing is restored while it is not mounted",
            )
            assert not job.told_of("Recovered")
            mounted.symlink_to(place.checkpoints)
            wait_until(lambda: job.told_of("Recovered"), "the job goes on")
            ends_exactly(job, place)
