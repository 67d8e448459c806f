"""Spark's master as a job begins: that there is such a one, and its cores for the job's slots."""

import re
import time
from collections.abc import Callable

from weir.errors import ConfigError, SlotError
from weir.spark_master import MasterKind, SparkMaster
from weir.tools.doctor import MASTER_ADVICE, unreachable_master

MASTER_WAIT_S = 10.0  # One that is being restarted; Spark would try for a minute.
MASTER_PAUSE_S = 1.0


def checked_master(name: str) -> SparkMaster:
    """The master of this name.

    Raises:
        ConfigError: Spark knows no such master: its JVM would end with a stack of its own.
    """
    master = SparkMaster.parse(name)
    if master.kind is MasterKind.OTHER:
        raise ConfigError(
            f"{name!r} is no master: give in-process, local[2], spark://host:7077, yarn or "
            "k8s://https://host:443"
        )
    return master


def await_master(name: str) -> None:
    """Wait until a standalone master answers; return at once for any other.

    Raises:
        SlotError: None does within ``MASTER_WAIT_S``.
    """
    deadline = time.monotonic() + MASTER_WAIT_S
    while problem := unreachable_master(name):
        if time.monotonic() > deadline:
            raise SlotError(f"{problem}; {MASTER_ADVICE}")
        time.sleep(MASTER_PAUSE_S)


def check_cores(master: str, slots: int) -> None:
    """Check that a job's slots can run at once.

    Raises:
        SlotError: The master has fewer cores than the job has slots.
    """
    cores = SparkMaster.parse(master).cores
    if cores is None or cores >= slots:
        return
    named = re.sub(r"^(local\[.+),\s*\d+\]$", r"\1]", master)
    raise SlotError(
        f"the job needs {slots} slots, one for each subtask of its widest operator, and {named} "
        f"runs {cores} {'task' if cores == 1 else 'tasks'} at a time: start it with "
        f"--master local[{slots}], or lower the parallelism to {cores}"
    )


def cores_max(
    master: SparkMaster, slots: int, setting: Callable[[str], str | None] = lambda key: None
) -> dict[str, str]:
    """The limit by which a job takes the cores of its slots of a standalone cluster, and no more.

    Without it an application takes all cores there are, and the next job finds no slot. Executors
    of a fixed size are taken whole: the limit is a multiple of theirs.
    """
    if master.kind is not MasterKind.STANDALONE or not slots:
        return {}
    each, executor = (_whole(setting(f"spark.{key}")) for key in ("task.cpus", "executor.cores"))
    return {"spark.cores.max": str(-(-slots * each // executor) * executor)}


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and int(text) else 1
