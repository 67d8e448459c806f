"""The Python of Spark's workers, compared with the driver's.

Spark starts a task whose Python is another one again and again, and each ends with an error in the
worker's log. On this machine the Python is asked before; a cluster's is known by such errors.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from py4j.protocol import Py4JError
from pyspark import SparkContext

from weir.errors import SlotError
from weir.spark.slot_tasks import tasks_of

FAILURES_MIN = 3  # Of one slot's tasks: a single one may have met the only such worker.
_MISMATCH = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: (?P<worker>\d+\.\d+) "
    r"than that in driver: (?P<driver>\d+\.\d+)"
)
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_TIMEOUT_S = 20


def check_worker_python(worker: str) -> None:
    """Check that workers run the driver's version of Python; a path that cannot run passes.

    Raises:
        SlotError: They run another one; the message names both.
    """
    path = shutil.which(worker)
    if path is None or os.path.realpath(path) == os.path.realpath(sys.executable):
        return
    try:
        run = subprocess.run(
            [path, "-c", _VERSION], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return  # Spark starts it too, and tells why it cannot.
    of_workers, own = run.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if of_workers != own:
        raise SlotError(
            f"the workers run Python {of_workers} ({path}, by PYSPARK_PYTHON), the driver runs "
            f"Python {own} ({sys.executable}), and both must be the same: set "
            f"PYSPARK_PYTHON={sys.executable}"
        )


def other_python(
    spark: SparkContext, group: str, is_missing: Callable[[int], bool] = lambda task: True
) -> str:
    """The error of workers whose Python is another one, by the failed tasks of a job group.

    Args:
        spark: The driver's Spark.
        group: The group of the Spark job, which has one stage.
        is_missing: Whether the job still waits for this task; what others met does not count.

    Returns:
        The error, with both versions and what to do; empty, if no task met such a worker often.
    """
    failed: Counter[int] = Counter()
    try:
        for index, host, message in _failures(spark, group):
            met = _MISMATCH.search(message)
            if met is None or not is_missing(index):
                continue
            failed[index] += 1
            if failed[index] >= FAILURES_MIN:
                return (
                    f"the workers run Python {met['worker']} (as on {host}), the driver runs "
                    f"Python {met['driver']} ({sys.executable}), and both must be the "
                    "same: set PYSPARK_PYTHON, or spark.pyspark.python, to the path of a Python "
                    f"{met['driver']} that all workers have"
                )
    except (OSError, Py4JError, AttributeError, TypeError):
        return ""  # Spark has ended, or is another version: the job's own time limits remain.
    return ""


def _failures(spark: SparkContext, group: str) -> Iterator[tuple[int, str, str]]:
    """Index, host and error of the failed tasks of a group's jobs, the newest first."""
    for task in tasks_of(spark, group, lambda stage: stage.numFailedTasks > 0):
        error = task.errorMessage()
        if error.isDefined():
            yield task.index(), task.host(), error.get()
