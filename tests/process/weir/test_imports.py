"""Imports that a worker process does not pay for."""

import subprocess
import sys


def test_a_worker_does_not_read_the_version_of_the_package() -> None:
    looks = "import sys, weir.worker.worker; print('importlib.metadata' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", looks], capture_output=True, text=True, check=True
    )
    assert process.stdout == "False\n"
