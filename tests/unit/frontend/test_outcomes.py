from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from frontend.operations import results
from jobs.models import Job, Operation
from tests.database.frontend import documents


def operation(which: str, result: dict[str, Any] | None, **parameters: Any) -> Operation:
    return Operation(kind=which, result=result, parameters=parameters)


def test_without_an_answer_nothing_is_shown() -> None:
    assert results.operation_outcome(operation("preview", None, kind="restore")) is None
    assert results.operation_outcome(operation("savepoint", {"checkpoint": 1})) is None


def test_a_rollback_is_told_in_sentences_and_positions() -> None:
    result = {
        "sentences": ["the job goes back to checkpoint 4", "is it known? no"],
        "sources": [
            {"name": "flights", "splits": [{"split": "a", "now": "9", "then": "start"}]},
            {"name": "other", "splits": []},
        ],
    }
    outcome = results.operation_outcome(operation("preview", result, kind="rollback"))
    assert outcome is not None
    assert outcome.sentences == ["The job goes back to checkpoint 4.", "Is it known? no."]
    assert [table.rows for table in outcome.tables] == [[("flights", "a", "9", "start")]]


def test_a_rollback_to_a_savepoint_is_confirmed_by_its_id() -> None:
    preview = operation(
        "preview", {}, kind="rollback", checkpoint=7, savepoint="s", rewind_output=False
    )
    assert results.confirmation(preview) == {
        "target": "savepoint:s",
        "rewind_output": False,
        "again": "savepoint=s",
        "where": "checkpoint 7",
        "is_known": False,
        "is_forward": False,
    }
    assert results.title(preview) == "Preview of a rollback to checkpoint 7"


def test_a_restore_shows_what_becomes_of_operators_and_states() -> None:
    result = {
        "would_restore": False,
        "problems": ["state total cannot be mapped"],
        "operators": [
            {
                "uid": "totals",
                "verdict": "rescaled",
                "stored_parallelism": 2,
                "parallelism": 4,
                "splits": 3,
                "states": [
                    {
                        "name": "total",
                        "verdict": "unmappable",
                        "stored": "text",
                        "declared": "long",
                        "changes": ["text to long"],
                        "note": "",
                        "size": 1_240,
                    }
                ],
                "notes": ["it was not opened"],
            },
            {"uid": "more", "verdict": "new", "stored_parallelism": None, "parallelism": 4},
        ],
    }
    outcome = results.operation_outcome(operation("preview", result, kind="restore"))
    assert outcome is not None
    assert (outcome.verdict, outcome.tone) == ("The restore would be refused.", "bad")
    assert outcome.sentences == ["State total cannot be mapped."]
    operators, states = outcome.tables
    said = "resumes 3 splits; it was not opened"
    assert operators.rows == [
        ("totals", "kept, with another parallelism", "2", "4", said),
        ("more", "new: begins empty", "–", "4", "–"),
    ]
    assert states.rows == [
        ("totals", "total", "cannot be mapped", "text", "long", "1.24 kB", "text to long")
    ]


def side(**more: Any) -> dict[str, Any]:
    return {"path": "/o", "files": 2, "rows": 1_200, "only": 0, "columns": []} | more


def compared(is_equal: bool, **more: Any) -> dict[str, Any]:
    sides = {"left": side(), "right": side(later=12)}
    output = {"operator": "hourly", "is_equal": is_equal, **sides, "equal": 1_200, "different": 0}
    return {"outputs": [output | more]}


def test_equal_outputs_are_said_to_be_equal() -> None:
    outcome = results.operation_outcome(operation("compare", compared(is_equal=True)))
    assert outcome is not None
    assert (outcome.tone, len(outcome.tables)) == ("good", 1)
    assert outcome.tables[0].caption == "Output of hourly"
    assert ("Rows", "1,200", "1,200") in outcome.tables[0].rows
    assert ("Rows after the other’s last window", "–", "12") in outcome.tables[0].rows


def test_differences_are_shown_by_row() -> None:
    result = compared(
        is_equal=False,
        different=1,
        only_left=[{"carrier": "XX", "delay": 4.5}],
        differing=[{"key": {"carrier": "AA"}, "columns": {"delay": [4.5, None]}}],
    )
    outcome = results.operation_outcome(operation("compare", result))
    assert outcome is not None
    assert outcome.tone == "warn"
    _, only, pairs = outcome.tables
    assert (only.head, only.rows) == (("carrier", "delay"), [("XX", "4.5")])
    assert pairs.rows == [("carrier=AA", "delay", "4.5", "–")]


def test_jobs_are_shown_side_by_side() -> None:
    one = {"job": "a", "status": "running", "event_time_lag_ms": 1_500, "state_bytes": 1_240}
    result = compared(is_equal=True) | {"jobs": [one, {"job": "b"}]}
    outcome = results.operation_outcome(operation("compare", result))
    assert outcome is not None
    assert outcome.tables[-1].head == ("", "a (this job)", "b")
    rows = outcome.tables[-1].rows
    assert ("Job", "a", "b") in rows
    assert ("Event time behind the clock", "1.50 s", "–") in rows
    assert ("Size of its state", "1.24 kB", "–") in rows


def test_a_long_table_says_how_long_it_is() -> None:
    result = compared(is_equal=False, only_left=[{"carrier": str(n)} for n in range(1_000)])
    outcome = results.operation_outcome(operation("compare", result))
    assert outcome is not None
    assert outcome.tables[1].caption.endswith("the first 200 of 1,000")
    assert len(outcome.tables[1].rows) == 200


def test_outputs_without_a_row_in_common_are_not_called_the_same() -> None:
    outcome = results.operation_outcome(operation("compare", compared(is_equal=True, equal=0)))
    assert outcome is not None
    assert (outcome.verdict, outcome.tone) == (
        "The jobs have no rows in common yet.",
        "idle",
    )


def test_columns_of_one_side_explain_why_outputs_differ() -> None:
    result = compared(is_equal=False, left=side(columns=["gate"]))
    outcome = results.operation_outcome(operation("compare", result))
    assert outcome is not None
    said = "Output of hourly: columns only in this job: gate; the outputs differ."
    assert said in outcome.sentences


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("value of LONG", "value of LONG"),
        ('list of ["LIST", "INT"]', "LIST<INT>"),
        (
            'map of ["MAP", "STRING", ["ROW_NAMED", ["a", "b"], ["INT", ["LIST", "LONG"]]]]',
            "MAP<STRING, ROW<a INT, b LIST<LONG>>>",
        ),
        ('value of ["ROW_NAMED", ["a"], ["INT"]]', "value of ROW<a INT>"),
        (
            'value of ["LIST", "INT"] and value of LONG',
            'value of ["LIST", "INT"] and value of LONG',
        ),
        ("value of []", "value of []"),
        ('value of ["ROW_NAMED"]', 'value of ["ROW_NAMED"]'),
        ("timers", "timers"),
        (None, "–"),
    ],
)
def test_composed_types_are_said_as_types(text: str | None, said: str) -> None:
    op = {
        "uid": "a",
        "verdict": "kept",
        "states": [{"name": "x", "verdict": "kept", "stored": text}],
    }
    outcome = results.operation_outcome(operation("preview", {"operators": [op]}, kind="restore"))
    assert outcome is not None
    assert outcome.tables[1].rows[0][3] == said


def test_the_form_of_a_fork_begins_with_what_a_preview_was_about() -> None:
    job = Job(pipeline_kind="module", pipeline_target="a.b")
    own = {"kind": "module", "target": "a.b", "artifact_digest": None}
    asked = operation(
        "preview",
        {},
        kind="restore",
        of="12",
        pipeline=own,
        parallelism=3,
        parameters={"o": "/x", "password": "hunter2"},
    )
    assert results.as_form(asked, job) == {
        "target": "checkpoint:12",
        "parameters": {"o": "/x"},
        "withheld": ["password"],
        "parallelism": 3,
        "pipeline_kind": "",
        "pipeline_target": "",
        "allow_non_restored_state": None,
        "secrets": "",
    }
    upload = {"kind": "upload", "target": "", "artifact_digest": "d"}
    outcome = results.as_form(
        operation("preview", {}, kind="restore", of="s3://b/sp", pipeline=upload), job
    )
    assert (outcome["pipeline_kind"], outcome["pipeline_target"]) == ("upload", "d")
    assert "target" not in outcome


# Real answers -------------------------------------------------------------------------------------


def test_a_real_preview_of_a_restore_is_understood(tmp_path: Path) -> None:
    outcome = results.operation_outcome(
        operation("preview", documents.restore(tmp_path), kind="restore")
    )
    assert outcome is not None
    assert (outcome.verdict, outcome.tone, outcome.sentences) == (
        "The restore would work.",
        "good",
        [],
    )
    operators, states = outcome.tables
    assert ("late", "dropped: its state is left behind", "2", "–", "–") in operators.rows
    said = {(row[0], row[1]): row for row in states.rows}
    assert said["hourly", "row"][2:5] == (
        "converted",
        "MAP<STRING, ROW<a INT>>",
        "MAP<STRING, ROW<a LONG, b STRING>>",
    )
    assert said["hourly", "added"][2] == "new: begins empty"
    assert said["late", "count"][2] == "dropped"
    assert said["hourly", "kept"][2] == "kept"
    assert {row[5] for row in states.rows} > {"–"}  # Sizes, with their units.


def test_a_real_refusal_of_a_restore_is_told_in_its_own_words(tmp_path: Path) -> None:
    outcome = results.operation_outcome(
        operation("preview", documents.refused_restore(tmp_path), kind="restore")
    )
    assert outcome is not None
    assert (outcome.verdict, outcome.tone) == ("The restore would be refused.", "bad")
    assert outcome.sentences[0].startswith("The checkpoint holds state of late")
    assert outcome.sentences[1].startswith("Operator 'totals': state 'mean' is value of LONG")
    (cell,) = [cell for row in outcome.tables[1].cells for cell in row if cell.tone == "bad"]
    assert cell.text == "cannot be mapped"


def test_a_real_preview_of_a_rollback_is_understood(tmp_path: Path) -> None:
    asked = operation(
        "preview", documents.rollback(tmp_path / "out"), kind="rollback", checkpoint=4
    )
    outcome = results.operation_outcome(asked)
    assert outcome is not None
    said = "\n".join(outcome.sentences)
    assert "The job goes back to checkpoint 4" in said
    assert "175 records are read again" in said
    assert "2 files (4.7 MB) are taken back" in said
    assert outcome.tables[0].rows == [("Flights", "file a", "550", "400")]
    assert not results.confirmation(asked)["is_forward"]
    forward = documents.rollback(tmp_path / "forward", to=6)
    assert results.confirmation(operation("preview", forward, kind="rollback"))["is_forward"]


def test_a_real_comparison_is_understood(tmp_path: Path) -> None:
    same, other = (
        results.operation_outcome(
            operation(
                "compare",
                {"outputs": [documents.comparison(tmp_path / str(equal), is_equal=equal)]},
            )
        )
        for equal in (True, False)
    )
    assert same is not None
    assert other is not None
    assert (same.tone, len(same.tables)) == ("good", 1)
    window = "in windows from 2025-01-01 02:00:00 UTC to 2025-01-01 22:00:00 UTC"
    assert same.sentences == [f"Output of hourly-sink: 84 rows equal, {window}."]
    assert other.sentences == [
        "Output of hourly-sink: 83 rows equal, 1 row with other values, "
        f"1 row only in the other job, {window}.",
        "Output of hourly-sink: mean_delay_min differs in 1 row, by 2.7 at most.",
    ]
    _, only, pairs = other.tables
    assert only.rows[0][0] == "B6"
    assert pairs.rows == [
        ("carrier=UA, window_start=2025-01-01 09:00:00 UTC", "mean_delay_min", "13.5", "16.2")
    ]


@pytest.mark.parametrize(
    ("kind", "parameters", "result", "sentence"),
    [
        ("savepoint", {"name": "first"}, {"checkpoint": 7}, "Savepoint first was taken in 1.50 s."),
        ("stop", {"name": "last"}, {"checkpoint": 1_007}, "It is checkpoint 1,007."),
        (
            "rollback",
            {"checkpoint": 4},
            {},
            "The job is running again from checkpoint 4 after 1.50 s.",
        ),
        ("rescale", {"parallelism": 4}, {}, "with parallelism 4 after 1.50 s."),
        ("discard", {"name": "first"}, {}, "Savepoint first was deleted with its files."),
        ("fork", {}, {"job": "trial"}, "The fork runs, 1.50 s after the request."),
    ],
)
def test_what_succeeded_is_said_in_a_sentence(
    kind: str, parameters: dict[str, Any], result: dict[str, Any], sentence: str
) -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    row = Operation(
        kind=kind,
        status="succeeded",
        parameters=parameters,
        result=result,
        created_at=at,
        ended_at=at + timedelta(seconds=1.5),
    )
    assert sentence in results.said(row)
    row.status = "failed"
    assert results.said(row) == ""
