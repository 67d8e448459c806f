"""A home directory for a control plane of one's own."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from controlplane.embedded.process import is_alive
from tests.processes import processes_of
from tests.services import reachable_directory
from tests.waiting import wait_until


@pytest.fixture
def home() -> Iterator[Path]:
    with reachable_directory() as directory:
        yield directory / "home"
        for process in processes_of(directory):  # Of a test that failed.
            with suppress(psutil.NoSuchProcess):
                process.kill()
            wait_until(lambda process=process: not is_alive(process), f"{process} has ended")
