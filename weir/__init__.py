"""Weir: barrier snapshots for stateful streams on Spark.

The floors, from the ground up (a package imports only from floors below it)::

    ids, errors, config     what everything shares
    common                  types, rows, time, watermark strategies
    graph, protocol         pure: the job as a graph, the checkpoint protocol as state machines
    storage                 where checkpoints live
    channels                elements on the wire, credit, authentication
    state                   keyed and operator state that can be frozen while it changes
    operators               what runs inside a subtask
    datastream              the user's builder
    runtime                 subtasks, gates, the loop of a worker process, the job master
    spark                   slots and submission on Spark
    testing                 seeded doubles, fault points
"""

from importlib.metadata import version

__version__ = version("weir-streaming")
