"""The Python of Spark's workers: whether it can run the driver's tasks.

Spark starts a task whose Python is away, is another version or has no Weir again and again, and
each ends with an error in the worker's log. On this machine the version is asked before; all else
is known by such errors.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata

from py4j.protocol import Py4JError
from pyspark import SparkContext

from weir.errors import SlotError
from weir.spark.slot_tasks import tasks_of
from weir.spark_master import SparkMaster

FAILURES_MIN = 3  # Of one slot's tasks: a single one may have met the only such worker.
_MISMATCH = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: (?P<worker>\d+\.\d+) "
    r"than that in driver: (?P<driver>\d+\.\d+)"
)
_NOT_STARTED = re.compile(r'Cannot run program "(?P<path>[^"]+)"[^:]*: (?P<why>[^\n]+)')
_NOT_LOADED = re.compile(r"\b(?:ModuleNotFoundError|ImportError|AttributeError): [^\n]+")
_RAISED = re.compile(r"[\w.]*(?:Error|Exception): ")
_ANY = "python3"  # PySpark's own choice.
_SET = "set PYSPARK_PYTHON, or spark.pyspark.python, to the path"
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


@contextmanager
def same_as_driver(spark: SparkContext) -> Iterator[None]:
    """Within it a local master's workers run the driver's Python, unless another one was chosen.

    PySpark takes the ``python3`` of the PATH, which in a notebook, or in an environment that is not
    activated, is not the one that runs the driver.
    """
    given = spark.pythonExec
    is_chosen = "PYSPARK_PYTHON" in os.environ or given != _ANY
    if SparkMaster.parse(str(spark.master)).is_on_this_machine and not is_chosen:
        spark.pythonExec = sys.executable
    try:
        yield
    finally:
        spark.pythonExec = given


def unfit_python(
    spark: SparkContext, group: str, is_missing: Callable[[int], bool] = lambda task: True
) -> str:
    """The error of workers whose Python cannot run tasks, by the failed tasks of a job group.

    Args:
        spark: The driver's Spark.
        group: The group of the Spark job, which has one stage.
        is_missing: Whether the job still waits for this task; what others met does not count.

    Returns:
        The error with what to do; empty, if no task met such a worker often.
    """
    failed: Counter[int] = Counter()
    for index, host, message in _failures(spark, group):
        cause = explained(message, host) if is_missing(index) else ""
        failed[index] += bool(cause)
        if failed[index] >= FAILURES_MIN:
            return cause
    return ""


def newest_failure(spark: SparkContext, group: str) -> str:
    """The newest failure of a group's tasks, in a line with its host; empty: there is none."""
    for _, host, message in _failures(spark, group):
        return f"on {host}: {explained(message, host) or summary(message)}"
    return ""


def explained(message: str, host: str = "") -> str:
    """The cause with what to do, where the error of a task on ``host`` is its Python's; or empty.

    Spark loads the function of its slots, which is Weir's, before any code of a pipeline.
    """
    there = f" (as on {host})" if host else ""
    if met := _MISMATCH.search(message):
        return (
            f"the workers run Python {met['worker']}{there}, the driver runs "
            f"Python {met['driver']} ({sys.executable}), and both must be the same: "
            f"{_SET} of a Python {met['driver']} that all workers have"
        )
    if met := _NOT_STARTED.search(message):
        return (
            f"the workers cannot start their Python {met['path']}{there}, {met['why']}: "
            f"{_SET} of a Python that all workers have"
        )
    if (met := _NOT_LOADED.search(message)) and "cloudpickle.loads" in message:
        return (
            f"the workers' Python{there} cannot load Weir: {met[0]}. Install "
            f"weir-streaming {metadata.version('weir-streaming')} there, or {_SET} of a Python "
            "that has it on all workers, before Spark is started"
        )
    return ""


def summary(message: str) -> str:
    """The line of a Spark error that says most: the last of a worker's traceback, or the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [""])[-1 if raised else 0]


def _failures(spark: SparkContext, group: str) -> Iterator[tuple[int, str, str]]:
    """Index, host and error of the failed tasks of a group's jobs, the newest first."""
    try:
        for task in tasks_of(spark, group, lambda stage: stage.numFailedTasks > 0):
            error = task.errorMessage()
            if error.isDefined():
                yield task.index(), task.host(), error.get()
    except (OSError, Py4JError, AttributeError, TypeError):
        return  # Spark has ended, or is another version: the job's own time limits remain.
