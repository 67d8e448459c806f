"""The program: a pipeline as bytes for the slots, with its graph, settings and module path.

The graph is pickled by cloudpickle: definitions of the script travel by value, imported ones by
name. Directories on the driver's module path that exist on the slot's machine too are put on its
path, so that modules beside the script can be imported wherever the file system is shared.
"""

import os
import sys
from typing import Any

import cloudpickle

from weir.config import JobConfig
from weir.errors import UserError
from weir.graph.logical import JobGraph
from weir.spark.unpicklable import unpicklable_part


class _Program:
    """Unpickles to ``(graph, config)`` once the module path is set."""

    def __init__(self, paths: list[str], body: bytes) -> None:
        self._paths = paths
        self._body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return load_program, (self._paths, self._body)


def dump_program(graph: JobGraph, config: JobConfig) -> bytes:
    """The bytes for the slots.

    Raises:
        UserError: An object that a function of the pipeline holds cannot be pickled.
    """
    try:
        body = cloudpickle.dumps((graph, config))
    except Exception as error:
        part = unpicklable_part(graph) or (
            f"{error}; open connections, locks and the like in open(), not when the function is "
            "created"
        )
        raise UserError(f"the pipeline cannot be sent to the slots: {part}") from error
    paths = [path for path in sys.path if os.path.isabs(path)]
    data: bytes = cloudpickle.dumps(_Program(paths, body))
    return data


def load_program(paths: list[str], body: bytes) -> tuple[JobGraph, JobConfig]:
    """Set the module path and unpickle the pipeline."""
    sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
    program: tuple[JobGraph, JobConfig] = cloudpickle.loads(body)
    return program
