"""A machine of a standalone cluster on which the checkpoint storage, or the output, is not mounted.

The share that it lacks is a directory below the one that each process works in: the driver's is
the test's, an executor's its own.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.harness import SESSION, rows_of
from tests.spark.test_driver import Driver, Place, driver
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
written = Path(env.get_job_parameter("share", str(output)))
build(env, written, %d, %f, hurry=output.with_name("hurry"))
env.execute("unmounted")
"""
SHARE = "/proc/self/cwd"
UNSEEN = "is not the job's checkpoint storage on"
UNSEEN_OUTPUT = "is not the job's output on"


@contextmanager
def unmounted(
    session: str, place: Place, monkeypatch: pytest.MonkeyPatch, *options: str
) -> Iterator[Driver]:
    """A job on a machine without the share, whose driver has it."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    environment = {**os.environ, SESSION: f"{session}/cluster", "PYTHONPATH": os.getcwd()}
    cluster = Cluster(environment, place.root)
    script = place.root / "unmounted.py"
    script.write_text(PIPELINE % (N, RATE))
    with cluster.running("master", "master.Master"):
        master = wait_until(lambda: cluster.address("master"), "the master is there")
        own = ("--master", master, "--parallelism", "2", *options)
        with (
            cluster.machine("machine", master),
            driver(session, place, *own, script=str(script), directory=place.root) as job,
        ):
            yield job


def mount(directory: Path, root: Path) -> Path:
    """Show the executor a directory of the share; the link that does."""
    (executor,) = (root / "work").glob("app-*/*")
    mounted = executor / directory.name
    assert not mounted.exists()
    mounted.symlink_to(directory)
    return mounted


def failures(job: Driver, text: str) -> list[str]:
    """The causes with this text for which attempts failed."""
    failing = job.told_of("JobChanged", status="failing")
    return [event["cause"] for event in failing if text in event["cause"]]


def test_no_checkpoint_completes_of_files_that_lie_in_another_directory_than_its_manifest(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be missing after any failure, and the checkpoints before them deleted by then.

    Nor are they taken for damaged where they are not seen.
    """
    place = Place(tmp_path)
    place.checkpoints.mkdir()
    with unmounted(session, place, monkeypatch, "--storage", f"{SHARE}/checkpoints") as job:

        def failed() -> list[str]:
            settled = job.told_of("CheckpointSettled")
            return [event["cause"] for event in settled if event["failure"] is not None]

        wait_until(lambda: len(failed()) > 2, "checkpoints fail")
        assert all(UNSEEN in cause for cause in failed())
        assert not job.told_of("CheckpointSettled", failure=None)
        mounted = mount(place.checkpoints, tmp_path)
        wait_until(
            lambda: len(job.told_of("CheckpointSettled", failure=None)) > 2,
            "checkpoints complete once it is mounted",
        )

        mounted.unlink()
        os.kill(job.told_of("WorkerStarted")[0]["pid"], signal.SIGKILL)
        wait_until(lambda: failures(job, UNSEEN), "nothing is restored while it is not mounted")
        assert not job.told_of("Recovered")
        mounted.symlink_to(place.checkpoints)
        wait_until(lambda: job.told_of("Recovered"), "the job goes on")
        ends_exactly(job, place)


def test_no_record_is_committed_to_another_directory_than_the_drivers_output(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be missing from the output, with all checkpoints complete."""
    place = Place(tmp_path)
    with unmounted(session, place, monkeypatch, "--arg", f"share={SHARE}/output") as job:
        wait_until(lambda: len(failures(job, UNSEEN_OUTPUT)) > 1, "attempts fail")
        assert not rows_of(place.output)
        assert not job.told_of("CheckpointSettled", failure=None)
        mounted = mount(place.output, tmp_path)
        wait_until(
            lambda: len(job.told_of("CheckpointSettled", failure=None)) > 2,
            "the job runs once it is mounted",
        )
        assert mounted.is_symlink()
        ends_exactly(job, place)
    assert {path.name.split("-")[0] for path in place.output.iterdir()} == {"part"}
