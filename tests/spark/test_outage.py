"""A machine of a standalone cluster that is away for longer than slots are waited for."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.find_spark_home import _find_spark_home

from tests.spark.harness import SESSION, count, rows_of, wait_until_gone, wrong_numbers
from tests.spark.test_driver import EXACT, Driver
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
    def running(self, name: str, *arguments: str) -> Iterator[psutil.Process]:
        """A daemon of Spark with a log of this name, and what it starts, until they are killed."""
        spark_class = Path(_find_spark_home(), "bin", "spark-class")
        command = [str(spark_class), f"org.apache.spark.deploy.{arguments[0]}", "--host", HOST]
        command += ["--port", "0", "--webui-port", "0", *arguments[1:]]
        with (self.directory / name).open("wb") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        daemon = psutil.Process(process.pid)
        try:
            yield daemon
        finally:
            for one in [*daemon.children(recursive=True), daemon]:
                one.kill()
            process.wait()

    @contextmanager
    def machine(self, name: str, master: str) -> Iterator[psutil.Process]:
        """A machine with two cores."""
        resources = ("--cores", "2", "--memory", "1g", "--work-dir", str(self.directory / "work"))
        with self.running(name, "worker.Worker", *resources, master) as worker:
            yield worker

    def address(self, name: str) -> str:
        """The URL that a master's log tells."""
        told = re.search(r"Starting Spark master at (\S+)", (self.directory / name).read_text())
        return told[1] if told else ""


@contextmanager
def job(cluster: Cluster, master: str, session: str) -> Iterator[Driver]:
    script, events = cluster.directory / "outage.py", cluster.directory / "events.jsonl"
    script.write_text(PIPELINE % (N, RATE))
    command = [sys.executable, "-m", "weir", "run", str(script), "--master", master]
    command += ["--parallelism", "2", "--storage", str(cluster.directory / "checkpoints")]
    command += ["--events", str(events), "--arg", f"output={cluster.directory / 'output'}"]
    with (cluster.directory / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=cluster.environment, stdout=log, stderr=log, text=True
        )
    try:
        yield Driver(process, session, events)
    finally:
        process.kill()
        process.wait()


def test_a_job_waits_for_a_machine_that_is_away_longer_than_its_slots_have_time(
    session: str, tmp_path: Path
) -> None:
    own = f"{session}/{uuid.uuid4().hex}"
    environment = {**os.environ, SESSION: own, "PYTHONPATH": os.getcwd()}
    cluster = Cluster({**environment, "PYSPARK_PYTHON": sys.executable}, tmp_path)
    with cluster.running("master", "master.Master"):
        master = wait_until(lambda: cluster.address("master"), "the master is there")
        with job(cluster, master, own) as driver:
            with cluster.machine("first", master):
                wait_until(
                    lambda: len(driver.told_of("CheckpointSettled", failure=None)) > 2,
                    lambda: f"checkpoints; {(tmp_path / 'driver.log').read_text()[-2_000:]}",
                )

            def failed() -> list[str]:
                return [event["cause"] for event in driver.told_of("JobChanged", status="failing")]

            wait_until(lambda: len(failed()) > 1, "its slots did not come in time")
            assert "There were enough before" in failed()[1]
            with cluster.machine("second", master):
                wait_until(lambda: driver.told_of("Recovered"), "the job has come back")
                (tmp_path / "hurry").touch()
                assert driver.end() == 0, (tmp_path / "driver.log").read_text()[-4_000:]
    wait_until_gone(driver.left)
    rows = rows_of(tmp_path / "output")
    assert count(rows, N) == EXACT
    assert not wrong_numbers(rows)
