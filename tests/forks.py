"""Python programs of tests as forks of a process that has loaded the runtime.

A run of ``weir`` takes half a second of a processor for its imports. What a process reads as it
imports, such as faults, is for a Python of its own.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from controlplane.embedded.fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[1]


def run_python(
    *words: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m`` with these words in a fork, without input; its output and exit code."""
    command = [sys.executable, "-m", *map(str, words)]
    with TemporaryFile() as out, TemporaryFile() as err:
        process = _server().start(
            command,
            title="a test's program",
            stdout=out.fileno(),
            stderr=err.fileno(),
            directory=cwd,
            environment=os.environ if env is None else env,
        )
        assert process is not None, "the fork server has ended"
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        for output in (out, err):
            output.seek(0)
        return subprocess.CompletedProcess(command, code, out.read().decode(), err.read().decode())


@cache
def _server() -> ForkServer:
    """The fork server of this process, which ends with it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    server = ForkServer(
        ["tests.warm"], environment=environment, directory=ROOT, log=subprocess.DEVNULL
    )
    atexit.register(server.end)
    return server
