"""The tasks that a local master runs at a time, which its name tells before any slot is missing."""

import os
import re

from weir.errors import SlotError

_LOCAL = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[(?P<workers>\d+),(?P<cores>\d+),\d+\]")


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
