"""PySpark's daemon with the runtime loaded, so that every slot and its template begin warm.

Spark starts one daemon for its Python workers on each executor and has it fork a worker for each
task. This one imports the runtime first: a slot then is ready in milliseconds, and its processes
share the memory of what was imported. Without it every slot's template imports on its own, half a
second of a processor each.

A fork must not copy the locks of another thread. Where an import has started one, which ours do
not, PySpark's own daemon takes over. ::

    spark.python.daemon.module  weir.spark.python_daemon

Weir sets this for the Spark that it starts on one machine. On a cluster, where the workers' Python
has to have Weir installed before the first task, it is the operator's to set.

Source: ``pyspark.daemon``, ``PythonWorkerFactory.scala``.
"""

import gc
import importlib
import os
import shutil
import sys

from weir.worker.template import SINGLE_THREADED, load_arrow, thread_count

MODULE = "weir.spark.python_daemon"  # This module, which runs as ``__main__``.
SETTING = "spark.python.daemon.module"
RUNTIME = (
    *("pyspark.worker", "cloudpickle"),
    *("weir.spark.slot", "weir.worker.process", "weir.worker.worker"),
)


def main() -> None:
    """Load the runtime, then fork Spark's workers until Spark ends."""
    load_runtime()
    import pyspark.daemon

    if thread_count() > 1:
        daemon = [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]]
        os.execv(sys.executable, daemon)
    gc.collect()
    gc.freeze()  # A collection in a child would touch, and so copy, every page.
    pyspark.daemon.manager()


def settings_for(worker_python: str) -> dict[str, str]:
    """Spark's settings for this daemon, where workers run the Python that the driver runs.

    Only there Weir is sure to be installed: a virtual environment has a path of its own for the
    interpreter of another.
    """
    path = shutil.which(worker_python)
    if path is None or os.path.abspath(path) != os.path.abspath(sys.executable):
        return {}
    return {SETTING: MODULE}


def load_runtime() -> None:
    """Import what a slot, its template and its workers need, but for the pipeline."""
    for key, value in SINGLE_THREADED.items():
        os.environ.setdefault(key, value)
    for name in RUNTIME:
        importlib.import_module(name)
    load_arrow()


if __name__ == "__main__":
    main()
