"""Weir: barrier snapshots for stateful streams on Spark.

The floors, from the ground up (a package imports only from floors below it)::

    ids, errors, config     shared by all floors common                  types, rows, time,
    watermark strategies graph, protocol         pure: the job as a graph, the checkpoint protocol
    as state machines storage                 the checkpoint storage: manifests, state files,
    attempts channels                elements on the wire, credit, authentication state
    keyed and operator state that can be frozen while it changes output                  files of
    sinks: withdrawn and put back on a rollback operators               sources, transformations,
    windows and sinks that a subtask runs datastream              the user's builder worker,
    jobmaster       subtasks, gates and the loop of a worker process; the job master managed, local,
    tools   drivers under a control plane, runs in one process, previews spark
    slots and submission on Spark cli, examples           the command line, pipelines to start from
"""

from importlib.metadata import version

__version__ = version("weir-streaming")
