"""Fixtures of the tests of programs."""

from collections.abc import Iterator

import pytest

from tests.programs.values import remove_files
from tests.simulation.conftest import show

__all__ = ["show"]


@pytest.fixture(autouse=True, scope="session")
def no_files_left() -> Iterator[None]:
    """Deletes what Parquet sources read."""
    yield
    remove_files()
