"""Weir: barrier snapshots for stateful streams on Spark.

The rooms, from the ground up (a room imports only rooms below it)::

    ids, errors             identifiers, the tree of errors
    fault_points, own_frames   where tests kill; which frames of a stack are Weir's own
    common, config          types, rows, time, watermark strategies; all settings of a job
    graph                   pure: the job graph, its chains and channels, key groups
    protocol                pure: the checkpoint protocol as state machines
    storage                 checkpoints: manifests, state files, attempts
    channels                elements on the wire, credit, authentication
    state                   keyed and operator state that can be frozen while it changes
    output                  files of sinks: withdrawn and put back by a rollback
    operators               sources, transformations, windows and sinks of a subtask
    worker, jobmaster       subtasks and the loop of a worker process; the job master
    datastream              the user's builder
    managed, local, tools   drivers under a control plane, runs in one process, previews
    spark                   slots and submission on Spark
    examples, cli           pipelines to start from, the command line
"""

from typing import TYPE_CHECKING

__version__: str

if not TYPE_CHECKING:  # Else every misspelt attribute would be a string.

    def __getattr__(name: str) -> str:
        """The version, read when it is asked for: each worker process would wait for it."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("weir-streaming")
