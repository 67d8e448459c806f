"""The daemon that Spark forks the Python of slots from, with the runtime in it."""

import subprocess
import sys

import psutil
from pyspark import SparkContext

# A library of a later version might start a thread on import.
WITH_A_THREAD = """
import sys, threading, time
from weir.spark import python_daemon
python_daemon.RUNTIME = ()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.argv = ["daemon", "pyspark.worker"]
python_daemon.main()
"""


def test_a_task_begins_with_the_runtime_and_one_thread(local: SparkContext) -> None:
    def modules(_: int) -> tuple[bool, int]:
        import sys

        from weir.worker.template import thread_count

        return "weir.worker.process" in sys.modules, thread_count()

    assert local.parallelize([0], 1).map(modules).collect() == [(True, 1)]


def test_sparks_own_daemon_takes_over_from_one_with_threads() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITH_A_THREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port = int.from_bytes(process.stdout.read(4), "big")
        command = psutil.Process(process.pid).cmdline()
        process.stdin.close()  # With which Spark ends its daemon.
        process.wait(30)
    assert 0 < port < 1 << 16
    assert command[1:] == ["-m", "pyspark.daemon", "pyspark.worker"]
