"""The test kit for users: pipelines and single functions, stepped by hand, without Spark.

``PipelineHarness`` runs a whole pipeline in the test's process and thread (``weir.local``): job
master, workers, channels, checkpoints and restores are those of a cluster. Only time, sources and
sinks are the test's: sources are fed, sinks are captured, and nothing happens between two calls.
``FunctionHarness`` runs one operator by itself. ``run`` and ``compare_outputs`` hold a run with a
kill against one without.

It needs neither pytest nor Spark; ``weir.testing.pytest_plugin`` has fixtures.
"""

from weir.testing.elements import Timed, Watermark
from weir.testing.function_harness import FunctionHarness
from weir.testing.outputs import OutputDifference, assert_same_output, compare_outputs
from weir.testing.pipeline_harness import PipelineHarness
from weir.testing.runs import Run, run
from weir.testing.stepped_cluster import KillPoint

__all__ = [
    "PipelineHarness",
    "FunctionHarness",
    "Timed",
    "Watermark",
    "KillPoint",
    "run",
    "Run",
    "compare_outputs",
    "assert_same_output",
    "OutputDifference",
]
