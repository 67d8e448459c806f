"""A Spark master by its name, as ``--master`` and ``spark.master`` have it.

Source: Spark's ``SparkContext.createTaskScheduler`` and ``SparkMasterRegex``.
"""

import os
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

TASK_FAILURES_MAX: Final = 1_000  # A lost slot's task is retried; the restart strategy decides.


class MasterKind(Enum):
    """The kinds of masters, each with the form of its names: the first that fits counts."""

    # Threads, and the failures that a task may have.
    LOCAL = re.compile(r"local(?:\[(0*[1-9]\d*|\*)(?:\s*,\s*\d+)?\])?")
    LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
    STANDALONE = re.compile(r"spark://\S+")
    YARN = re.compile(r"yarn")
    KUBERNETES = re.compile(r"k8s://\S+")
    OTHER = re.compile(r".*", re.DOTALL)  # Spark itself knows no such master; a plugin may.


@dataclass(frozen=True, slots=True)
class SparkMaster:
    """A master, and as much as its name tells."""

    name: str
    kind: MasterKind
    workers: int = 1  # Of a local cluster.
    threads: int | None = None  # Of each of them, or of ``local``; None: ``*``, or not told.

    @classmethod
    def parse(cls, name: str) -> "SparkMaster":
        """The master of this name."""
        matches = ((kind, kind.value.fullmatch(name)) for kind in MasterKind)
        kind, match = next((kind, match) for kind, match in matches if match is not None)
        if kind is MasterKind.LOCAL:
            return cls(name, kind, threads=None if match[1] == "*" else int(match[1] or 1))
        if kind is MasterKind.LOCAL_CLUSTER:
            return cls(name, kind, workers=int(match[1]), threads=int(match[2]))
        return cls(name, kind)

    @property
    def cores(self) -> int | None:
        """The number of tasks that run at a time; None: the name does not tell."""
        if self.threads is not None:
            return self.workers * self.threads
        return (os.cpu_count() or 1) if self.kind is MasterKind.LOCAL else None

    @property
    def is_on_this_machine(self) -> bool:
        """Whether driver and executors run on one machine."""
        return self.kind in (MasterKind.LOCAL, MasterKind.LOCAL_CLUSTER)

    def with_retries(self, threads: int | None = None) -> str:
        """The name with retries of tasks: ``local[n]`` retries none unless told to.

        Args:
            threads: In place of ``*``.
        """
        if self.kind is not MasterKind.LOCAL:
            return self.name
        return f"local[{self.threads or threads or '*'},{TASK_FAILURES_MAX}]"
