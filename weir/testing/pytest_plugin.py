"""Fixtures for pytest: harnesses that are closed at the end of the test.

A test suite asks for them, in its topmost ``conftest.py`` or in a module of tests::

    pytest_plugins = ["weir.testing.pytest_plugin"]

They are no entry point: pytest would load them in every run in an environment that has Weir, and
rewrite the assertions of all modules that Weir was installed with.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from weir.testing.function_harness import FunctionHarness
from weir.testing.pipeline_harness import PipelineHarness


@pytest.fixture
def pipeline_harness() -> Iterator[Callable[..., PipelineHarness]]:
    """``PipelineHarness``, whose objects are closed at the end of the test."""
    with ExitStack() as stack:

        def make(*arguments: Any, **settings: Any) -> PipelineHarness:
            return stack.enter_context(PipelineHarness(*arguments, **settings))

        yield make


@pytest.fixture
def function_harness() -> Iterator[Callable[..., FunctionHarness]]:
    """``FunctionHarness``, whose objects are closed at the end of the test."""
    with ExitStack() as stack:

        def make(*arguments: Any, **settings: Any) -> FunctionHarness:
            return stack.enter_context(FunctionHarness(*arguments, **settings))

        yield make
