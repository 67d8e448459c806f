"""A home directory for a control plane of one's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded.process import is_alive
from tests.process.embedded.weir_up import processes_of, wait_until
from tests.services import reachable_directory


@pytest.fixture
def home() -> Iterator[Path]:
    with reachable_directory() as directory:
        yield directory / "home"
        for process in processes_of(directory):  # Of a test that failed.
            process.kill()
            wait_until(lambda process=process: not is_alive(process), f"{process} to end")
