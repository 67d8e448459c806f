"""``python -m tests.docs.example script.py``: an example, run without Spark."""

import runpy
import sys

from weir.datastream.execution import ExecutionOptions, overriding
from weir.spark import program, submit

submit.announce(lambda job: program.dump_program(job.graph, job.config))  # As for slots.
with overriding(ExecutionOptions(master=submit.IN_PROCESS)):
    runpy.run_path(sys.argv[1], run_name="__main__")
