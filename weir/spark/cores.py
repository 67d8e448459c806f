"""A Spark master by its name: whether there is such a one, and the cores that a job has of it."""

import os
import re
from collections.abc import Callable

from weir.errors import ConfigError, SlotError

_LOCAL = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[(?P<workers>\d+),(?P<cores>\d+),\d+\]")
_MASTER = re.compile(rf"{_LOCAL.pattern}|local-cluster\[.*\]|spark://.+|yarn|k8s://.+")


def check_master(master: str) -> None:
    """Check that Spark knows such a master: its JVM would end with a stack of its own.

    Raises:
        ConfigError: It does not.
    """
    if not _MASTER.fullmatch(master.replace(" ", "")):
        raise ConfigError(
            f"{master!r} is no master: give in-process, local[2], spark://host:7077, yarn or "
            "k8s://https://host:443"
        )


def cores_of(master: str) -> int | None:
    """The number of tasks that run at a time; None: the master's name does not tell."""
    compact = master.replace(" ", "")
    if local := _LOCAL.fullmatch(compact):
        cores = local["cores"] or "1"
        return (os.cpu_count() or 1) if cores == "*" else int(cores)
    if cluster := _LOCAL_CLUSTER.fullmatch(compact):
        return int(cluster["workers"]) * int(cluster["cores"])
    return None


def check_cores(master: str, slots: int) -> None:
    """Check that a job's slots can run at once.

    Raises:
        SlotError: The master has fewer cores than the job has slots.
    """
    cores = cores_of(master)
    if cores is None or cores >= slots:
        return
    named = re.sub(r",\d+\]$", "]", master) if master.startswith("local[") else master
    raise SlotError(
        f"the job needs {slots} slots, one for each subtask of its widest operator, and {named} "
        f"runs {cores} {'task' if cores == 1 else 'tasks'} at a time: start it with "
        f"--master local[{slots}], or lower the parallelism to {cores}"
    )


def cores_max(
    master: str, slots: int, setting: Callable[[str], str | None] = lambda key: None
) -> dict[str, str]:
    """The limit by which a job takes the cores of its slots of a standalone cluster, and no more.

    Without it an application takes all cores there are, and the next job finds no slot. Executors
    of a fixed size are taken whole: the limit is a multiple of theirs.
    """
    if not master.startswith("spark://") or not slots:
        return {}
    each, executor = (_whole(setting(f"spark.{key}")) for key in ("task.cpus", "executor.cores"))
    return {"spark.cores.max": str(-(-slots * each // executor) * executor)}


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and int(text) else 1
