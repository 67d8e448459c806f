"""Taps: records that pass an output, as text, within bounds, and without harm to the job."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.worker.subtask_harness import ATTEMPT, records
from tests.unit.worker.test_worker import CHANNEL, WorkerHarness
from weir.common.batch import Batch
from weir.common.row import Row
from weir.config import JobConfig
from weir.ids import OperatorId
from weir.protocol.inspection import (
    COLUMNS_MAX,
    RECORDS_LENGTH_MAX,
    RECORDS_MAX,
    TAP_MS,
    VALUE_LENGTH_MAX,
    Inspected,
    InspectionKind,
    InspectSubtask,
    TappedRecord,
    TappedRecords,
)
from weir.secrets import job_secrets
from weir.secrets.masking import MASK
from weir.worker.inspection.taps import shown
from weir.worker.ports import ElementArrived

SECRET = "correct-horse-battery"


def tap(operator: str = "source") -> InspectSubtask:
    return InspectSubtask(ATTEMPT, "r1", InspectionKind.RECORDS, OperatorId(operator), 0)


class Harness(WorkerHarness):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.deploy()

    @property
    def answers(self) -> list[Inspected]:
        return [report for report in self.reports if isinstance(report, Inspected)]

    def output(self, operator: str) -> Any:
        (output,) = (
            chained.operator.ctx.output
            for one in self.worker.subtasks
            for chained in one.operators
            if chained.subtask.operator == operator
        )
        return output


def values(answer: Inspected) -> list[str]:
    assert answer.records is not None
    return [record.values[0] for record in answer.records.records]


def test_the_first_records_that_pass_are_shown_and_the_tap_closes() -> None:
    harness = Harness(records=RECORDS_MAX + 20, credit_bytes=1 << 20)
    harness.command(tap())
    assert harness.output("source").tap is not None
    harness.run()
    (answer,) = harness.answers
    assert values(answer) == [str(n) for n in range(RECORDS_MAX)]
    assert (answer.request_id, answer.index, answer.cause) == ("r1", 0, "")
    assert harness.output("source").tap is None
    assert len(harness.transport.taken(0)) >= RECORDS_MAX + 20  # And all were sent.


def test_a_tap_without_records_says_so_when_its_time_is_over() -> None:
    harness = Harness()
    harness.command(tap("sink"))
    pause = harness.run()
    assert pause is not None
    assert 0 < pause <= TAP_MS / 1_000  # An idle loop wakes up for it.
    harness.clock.ms += TAP_MS - 1
    harness.run()
    assert harness.answers == []
    harness.clock.ms += 1
    harness.run()
    (answer,) = harness.answers
    assert "no record passed within 3 seconds" in answer.cause
    assert answer.records is None
    assert harness.output("sink").tap is None


def test_a_source_that_has_ended_says_so() -> None:
    harness = Harness()
    harness.run()
    harness.command(tap())
    harness.clock.ms += TAP_MS
    harness.run()
    (answer,) = harness.answers
    assert "has ended" in answer.cause


def test_a_tap_answers_with_the_few_records_that_passed_in_its_time() -> None:
    harness = Harness()
    harness.command(tap("sink"))
    harness.output("sink").emit(Batch.of_rows(["a", "b"]))
    harness.clock.ms += TAP_MS
    harness.run()
    (answer,) = harness.answers
    assert values(answer) == ["a", "b"]


def test_back_pressure_is_told_as_the_reason_for_no_record() -> None:
    harness = Harness(records=50, credit_bytes=1)
    harness.run()
    assert harness.worker.subtasks[0].held.is_on or harness.worker.subtasks[1].held.is_on
    held = next(one for one in harness.worker.subtasks if one.held.is_on)
    harness.command(tap(str(held.chain.operator)))
    harness.clock.ms += TAP_MS
    harness.run()
    (answer,) = harness.answers
    assert "back pressure holds it" in answer.cause


def test_a_second_tap_on_one_output_is_refused_at_once() -> None:
    harness = Harness()
    harness.command(tap())
    harness.command(tap())
    (answer,) = harness.answers
    assert "another request" in answer.cause


def test_a_job_that_forbids_it_is_not_tapped(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(records=3)
    monkeypatch.setattr(harness.worker, "_config", JobConfig(allow_tap=False))
    harness.command(tap())
    assert harness.output("source").tap is None
    (answer,) = harness.answers
    assert "forbids" in answer.cause


class Unfriendly:
    """Cannot be copied, or written as text."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __deepcopy__(self, memo: object) -> "Unfriendly":
        if self.where == "copy":
            raise ValueError(self)  # Whose text raises in turn.
        return self

    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("where", "said"),
    [("copy", "cannot be copied: ValueError"), ("text", "cannot be shown: ValueError")],
)
def test_a_record_that_resists_fails_the_tap_and_not_the_job(where: str, said: str) -> None:
    harness = Harness()
    harness.command(tap("sink"))
    harness.output("sink").emit(Batch.of_rows([Unfriendly(where)]))
    harness.clock.ms += TAP_MS
    harness.run()
    (answer,) = harness.answers
    assert said in answer.cause
    assert harness.failures == []
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))
    harness.run()
    assert harness.sink.seen.get() == ["a"]


def test_records_are_those_of_their_moment() -> None:
    """A consumer may change an object that it got: the tap has a copy of its own."""
    harness = Harness()
    harness.command(tap("sink"))
    record = {"n": 1}
    harness.output("sink").emit(Batch.of_rows([record]))
    record["n"] = 2
    harness.clock.ms += TAP_MS
    harness.run()
    (answer,) = harness.answers
    assert values(answer) == ["{'n': 1}"]


def test_records_that_take_long_to_copy_are_few() -> None:
    harness = Harness()

    class Large:
        def __deepcopy__(self, memo: object) -> "Large":
            harness.clock.ms += 2
            return self

    harness.command(tap("sink"))
    harness.output("sink").emit(Batch.of_rows([Large() for _ in range(20)]))
    (answer,) = harness.answers  # At once.
    assert len(values(answer)) == 3  # 2 and 4 ms are within the 5, 6 are beyond.


# The texts.


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(job_secrets, "_handed", None)
    monkeypatch.setattr(job_secrets, "_known", {})
    monkeypatch.setattr(job_secrets, "_masker", job_secrets.Masker([SECRET]))
    return SECRET


def test_columns_are_named_and_values_are_text() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    batch = Batch.of_columns(
        pa.record_batch({"word": ["a", None], "n": [1, 2], "at": [at, at]}),
        timestamps=np.array([5, 6]),
    )
    assert shown([batch]) == TappedRecords(
        ("word", "n", "at"),
        (
            TappedRecord(("a", "1", at.isoformat()), 5),
            TappedRecord(("null", "2", at.isoformat()), 6),
        ),
    )


def test_rows_with_names_have_columns_and_other_objects_have_one() -> None:
    assert shown([Batch.of_rows([Row(a=1, b=2.5)])]).columns == ("a", "b")
    assert shown([Batch.of_rows([("x", 1)])]) == TappedRecords(
        ("record",), (TappedRecord(("('x', 1)",)),)
    )


def test_records_of_another_type_are_left_out_and_the_table_says_so() -> None:
    taken = shown([Batch.of_rows([Row(a=1)]), Batch.of_rows([Row(b=1)])])
    assert (taken.columns, len(taken.records), taken.is_cut) == (("a",), 1, True)


def test_a_secret_is_masked_before_its_value_is_cut(secret: str) -> None:
    """A cut within the secret would leave its beginning."""
    padding = "x" * (VALUE_LENGTH_MAX - len(secret) // 2)
    for record in (padding + secret, [padding + secret], (padding + secret).encode()):
        (row,) = shown([Batch.of_rows([record])]).records
        assert secret[: len(secret) // 4] not in row.values[0]
        assert row.values[0].endswith(f"{MASK[:3]}…") or MASK in row.values[0]
    (row,) = shown([Batch.of_rows([{"k": secret}])]).records
    assert row.values[0] == f"{{'k': '{MASK}'}}"


def test_values_columns_and_all_together_are_bounded() -> None:
    (row,) = shown([Batch.of_rows(["y" * 1_000_000])]).records
    assert len(row.values[0]) == VALUE_LENGTH_MAX
    wide = Row(**{f"c{n}": n for n in range(COLUMNS_MAX + 5)})
    taken = shown([Batch.of_rows([wide])])
    assert (len(taken.columns), len(taken.records[0].values)) == (COLUMNS_MAX, COLUMNS_MAX)
    assert taken.is_cut
    long = Row(**{f"c{n}": "z" * 500 for n in range(COLUMNS_MAX)})
    taken = shown([Batch.of_rows([long] * RECORDS_MAX)])
    total = sum(len(value) for record in taken.records for value in record.values)
    assert RECORDS_LENGTH_MAX / 2 < total <= RECORDS_LENGTH_MAX
    assert taken.is_cut


@pytest.mark.parametrize(
    "value",
    [10**10_000, [list(range(100_000))], {"a": {"b": "c" * 10_000}}, b"d" * 100_000],
    ids=["number", "list", "dict", "bytes"],
)
def test_large_values_are_read_in_part(value: Any) -> None:
    (row,) = shown([Batch.of_rows([value])]).records
    assert len(row.values[0]) <= VALUE_LENGTH_MAX
