"""A machine of a standalone cluster that is away for longer than slots are waited for."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.spark.harness import SESSION, count, rows_of, wait_until_gone, wrong_numbers
from tests.spark.test_driver import EXACT, Driver, Place, driver
from tests.waiting import wait_until

N = 20_000
RATE = 200.0
HOST = "127.0.0.1"
# Long enough for an executor's start on a busy machine.
PIPELINE = """
from pathlib import Path
from tests.spark.pipeline import build
from weir.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.configure({"slot.request.timeout": "45 s"})
env.enable_checkpointing(300)
output = Path(env.get_job_parameter("output", ""))
build(env, output, %d, %f, hurry=output.with_name("hurry"))
env.execute("outage")
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Spark master, and the machine of its one worker."""

    environment: dict[str, str]
    directory: Path

    @contextmanager
    def running(self, name: str, *arguments: str) -> Iterator[None]:
        """A daemon of Spark with a log of this name, and what it starts, until they are killed."""
        spark_class = Path(_find_spark_home(), "bin", "spark-class")
        command = [str(spark_class), f"org.apache.spark.deploy.{arguments[0]}", "--host", HOST]
        command += ["--port", "0", "--webui-port", "0", *arguments[1:]]
        with (self.directory / name).open("wb") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        daemon = psutil.Process(process.pid)
        try:
            yield
        finally:
            for one in [*daemon.children(recursive=True), daemon]:
                with suppress(psutil.NoSuchProcess):  # It went with one before it.
                    one.kill()
            process.wait()

    @contextmanager
    def machine(self, name: str, master: str) -> Iterator[None]:
        """A machine with two cores."""
        resources = ("--cores", "2", "--memory", "1g", "--work-dir", str(self.directory / "work"))
        with self.running(name, "worker.Worker", *resources, master):
            yield

    def address(self, name: str) -> str:
        """The URL that a master's log tells."""
        told = re.search(r"Starting Spark master at (\S+)", (self.directory / name).read_text())
        return told[1] if told else ""


def ends_exactly(job: Driver, place: Place) -> None:
    """The job hurries to its end, and its output holds each record once, in order."""
    (place.root / "hurry").touch()
    assert job.end() == 0, (place.root / "driver.log").read_text()[-4_000:]
    wait_until_gone(job.left)
    rows = rows_of(place.output)
    assert count(rows, N) == EXACT
    assert not wrong_numbers(rows)


def test_a_job_waits_for_a_machine_that_is_away_longer_than_its_slots_have_time(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    environment = {**os.environ, SESSION: f"{session}/cluster", "PYTHONPATH": os.getcwd()}
    cluster, place = Cluster(environment, tmp_path), Place(tmp_path)
    (tmp_path / "outage.py").write_text(PIPELINE % (N, RATE))
    with cluster.running("master", "master.Master"):
        master = wait_until(lambda: cluster.address("master"), "the master is there")
        options = ("--master", master, "--parallelism", "2")
        with driver(session, place, *options, script=str(tmp_path / "outage.py")) as job:
            with cluster.machine("first", master):
                wait_until(
                    lambda: len(job.told_of("CheckpointSettled", failure=None)) > 2,
                    "checkpoints complete",
                )

            def failed() -> list[str]:
                return [event["cause"] for event in job.told_of("JobChanged", status="failing")]

            wait_until(lambda: len(failed()) > 1, "its slots did not come in time")
            assert "There were enough before" in failed()[1]
            with cluster.machine("second", master):
                wait_until(lambda: job.told_of("Recovered"), "the job has come back")
                ends_exactly(job, place)
