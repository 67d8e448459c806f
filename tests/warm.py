"""The runtime, loaded as far as ``weir run`` on the in-process cluster does; for forks."""

import os
from importlib import import_module

from weir.worker.template import SINGLE_THREADED, load_arrow

os.environ.update({key: os.environ.get(key, value) for key, value in SINGLE_THREADED.items()})
for name in (
    *("weir.cli.arguments", "weir.cli.run", "weir.cli.checkpoints", "weir.cli.inspect"),
    *("weir.cli.clean", "weir.spark.submit", "weir.spark.program"),
):
    import_module(name)
load_arrow()
