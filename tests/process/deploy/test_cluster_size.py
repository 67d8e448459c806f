"""The size of a standalone cluster, asked of Spark's own master."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home
from pytest_django import Settings

from controlplane.embedded.server import free_port
from jobs import cluster_size
from jobs.models import Job
from tests.waiting import wait_until
from weir.jvm_options import jvm_options

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def spark_process(directory: Path, name: str, *options: str) -> Iterator[Path]:
    """A process of a standalone cluster, while it is needed; its log."""
    log = directory / f"{name}.log"
    spark = Path(_find_spark_home())
    with log.open("wb") as output:
        process = subprocess.Popen(
            [spark / "bin" / "spark-class", *options],
            cwd=directory,
            env={
                **os.environ,
                "SPARK_HOME": str(spark),
                "PYSPARK_PYTHON": sys.executable,
                "JDK_JAVA_OPTIONS": jvm_options(),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


def test_a_standalone_master_tells_the_cores_of_the_workers_that_are_alive(
    tmp_path: Path, settings: Settings
) -> None:
    page_port = free_port()
    local = ("--host", "127.0.0.1", "--port", "0", "--webui-port")
    with ExitStack() as cluster:
        log = cluster.enter_context(
            spark_process(tmp_path, "master", MASTER, *local, str(page_port))
        )
        address = re.compile(r"spark://127\.0\.0\.1:\d+")
        master = wait_until(lambda: address.search(log.read_text()), "the master listens").group()
        settings.WEIR_SPARK_MASTER = master
        settings.WEIR_SPARK_MASTER_UI = f"http://127.0.0.1:{page_port}"
        job = Job(spark_master=master)
        wait_until(lambda: cluster_size.slots_max(job) == 0, "the master answers")

        worker = (WORKER, *local, "0", "--cores", "3", "--work-dir", str(tmp_path), master)
        with spark_process(tmp_path, "worker", *worker):
            wait_until(lambda: cluster_size.slots_max(job) == 3, "the worker is counted")
            assert cluster_size.slots_max(Job(spark_master="spark://elsewhere:1")) is None
            assert cluster_size.slots_max(Job(spark_master="yarn")) is None
        wait_until(lambda: cluster_size.slots_max(job) == 0, "a worker that is gone does not count")
