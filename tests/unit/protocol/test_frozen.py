"""Copies of frozen dataclasses, beside those of the standard library."""

import dataclasses

import pytest

from tests.builders import pending
from weir.protocol import frozen
from weir.protocol.coordinator import CoordinatorState


def test_a_copy_is_that_of_the_standard_library() -> None:
    state = CoordinatorState(pending=(pending(1),), is_stopping=True)
    changes = {"next_periodic_ms": 7, "pending": ()}
    assert frozen.replace(state, **changes) == dataclasses.replace(state, **changes)
    assert frozen.replace(state) == state


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError, match="mode"):
        frozen.replace(CoordinatorState(), mode=1)
