from typing import Any

from frontend import outcomes
from jobs.models import Operation


def operation(which: str, result: dict[str, Any] | None, **parameters: Any) -> Operation:
    return Operation(kind=which, result=result, parameters=parameters)


def test_without_an_answer_nothing_is_shown() -> None:
    assert outcomes.of(operation("preview", None, kind="restore")) is None
    assert outcomes.of(operation("savepoint", {"checkpoint": 1})) is None


def test_a_rollback_is_told_in_sentences_and_positions() -> None:
    result = {
        "sentences": ["the job goes back to checkpoint 4", "is it known? no"],
        "sources": [
            {"name": "flights", "splits": [{"split": "a", "now": "9", "then": "start"}]},
            {"name": "other", "splits": []},
        ],
    }
    found = outcomes.of(operation("preview", result, kind="rollback"))
    assert found is not None
    assert found.sentences == ["The job goes back to checkpoint 4.", "Is it known? no."]
    assert [table.rows for table in found.tables] == [[("flights", "a", "9", "start")]]


def test_a_rollback_to_a_savepoint_is_confirmed_by_its_id() -> None:
    found = operation(
        "preview", {}, kind="rollback", checkpoint=7, savepoint="s", rewind_output=False
    )
    assert outcomes.confirmation(found) == {"target": "savepoint:s", "rewind_output": False}
    assert outcomes.title(found) == "Preview of a rollback to checkpoint 7"


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
    found = outcomes.of(operation("preview", result, kind="restore"))
    assert found is not None
    assert (found.verdict, found.tone) == ("The restore would be refused.", "bad")
    assert found.sentences == ["State total cannot be mapped."]
    operators, states = found.tables
    said = "goes on with 3 splits; it was not opened"
    assert operators.rows == [
        ("totals", "kept, with another parallelism", "2", "4", said),
        ("more", "new: begins empty", "–", "4", "–"),
    ]
    assert states.rows == [
        ("total", "totals", "cannot be mapped", "text", "long", "1.24 kB", "text to long")
    ]


def side(**more: Any) -> dict[str, Any]:
    return {"path": "/o", "files": 2, "rows": 1_200, "only": 0, "columns": []} | more


def compared(is_equal: bool, **more: Any) -> dict[str, Any]:
    sides = {"left": side(), "right": side(later=12)}
    found = {"operator": "hourly", "is_equal": is_equal, **sides, "equal": 1_200, "different": 0}
    return {"outputs": [found | more]}


def test_equal_outputs_are_said_to_be_equal() -> None:
    found = outcomes.of(operation("compare", compared(is_equal=True)))
    assert found is not None
    assert (found.tone, len(found.tables)) == ("good", 1)
    assert found.tables[0].caption == "Output of hourly"
    assert ("Rows", "1,200", "1,200") in found.tables[0].rows
    assert ("After the other’s last window", "–", "12") in found.tables[0].rows


def test_differences_are_shown_by_row() -> None:
    result = compared(
        is_equal=False,
        different=1,
        only_left=[{"carrier": "XX", "delay": 4.5}],
        differing=[{"key": {"carrier": "AA"}, "columns": {"delay": [4.5, None]}}],
    )
    found = outcomes.of(operation("compare", result))
    assert found is not None
    assert found.tone == "warn"
    _, only, pairs = found.tables
    assert (only.head, only.rows) == (("carrier", "delay"), [("XX", "4.5")])
    assert pairs.rows == [("carrier=AA", "delay", "4.5", "–")]


def test_jobs_are_shown_side_by_side() -> None:
    one = {"job": "a", "status": "running", "event_time_lag_ms": 1_500, "state_bytes": 1_240}
    result = compared(is_equal=True) | {"jobs": [one, {"job": "b"}]}
    found = outcomes.of(operation("compare", result))
    assert found is not None
    rows = found.tables[-1].rows
    assert ("Job", "a", "b") in rows
    assert ("Event time behind the clock", "1.50 s", "–") in rows
    assert ("Size of its state", "1.24 kB", "–") in rows


def test_a_long_table_says_how_long_it_is() -> None:
    result = compared(is_equal=False, only_left=[{"carrier": str(n)} for n in range(1_000)])
    found = outcomes.of(operation("compare", result))
    assert found is not None
    assert found.tables[1].caption.endswith("the first 200 of 1,000")
    assert len(found.tables[1].rows) == 200
