"""A failure names its operator whether anything on the way labelled it or not."""

import sys
from functools import partial

import pytest

from tests.unit.operators.operator_harness import Harness
from weir.common.tracebacks import headline_of, operator_first, without_own_frames
from weir.operators.base import Operator
from weir.operators.stateless import MapOperator
from weir.worker.failure_text import failure_text


class Broken(Operator):
    """An operator that fails without a word about itself."""

    def on_batch(self, batch: object, input_index: int) -> None:
        raise OSError(28, "No space left on device")


def failure(harness: Harness) -> str:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - of any class
        harness.rows([0])
    return failure_text(raised.value)


def test_an_error_without_a_label_gets_that_of_the_operator_that_ran() -> None:
    label = Harness(Broken).ctx.label
    first, _, rest = failure(Harness(Broken)).partition("\n")
    assert first == f"{label} failed: OSError: [Errno 28] No space left on device"
    assert rest.startswith("Traceback (most recent call last):\n")


def test_the_users_error_is_told_once_and_its_frames_kept() -> None:
    text = failure(Harness(partial(MapOperator, lambda n: 1 / n)))
    assert text.count("direct cause") == 0
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")
    told = without_own_frames(operator_first(f"map-0 failed\n{text}"))
    assert "(in the subtask map-0)\nTraceback" in told


def test_a_function_that_ends_the_program_is_named_and_told_what_to_do_instead() -> None:
    harness = Harness(partial(MapOperator, lambda n: sys.exit(n)))
    first, *_, last = failure(harness).splitlines()
    assert (
        first
        == f"{harness.ctx.label} failed: sys.exit(0) ends no job; raise an error that says why"
    )
    assert last == "SystemExit: 0"


def test_an_error_without_a_message_is_its_class_alone() -> None:
    def full(n: int) -> int:
        raise MemoryError

    first, *_ = failure(Harness(partial(MapOperator, full))).splitlines()
    assert first.endswith("failed on the record 0: MemoryError")


def test_a_cause_that_begins_with_its_traceback_stays_as_it_is() -> None:
    cause = "map-0 failed\nTraceback (most recent call last):\nValueError: 7\n"
    assert operator_first(cause) == cause
    assert headline_of(cause) is None
    assert operator_first("4 of 64 slots registered") == "4 of 64 slots registered"
