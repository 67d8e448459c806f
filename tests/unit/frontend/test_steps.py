"""The steps of operations, from their rows."""

from typing import Any

import pytest

from frontend.operations import effects, steps
from frontend.operations.effects import Known
from frontend.operations.steps import Acknowledged
from jobs.models import Operation


def states(kind: str, status: str, job: str = "running", **progress: Any) -> list[str]:
    row = Operation(kind=kind, status=status, progress=progress or None)
    return [step.state.value for step in steps.operation_steps(row, job)]


@pytest.mark.parametrize(
    ("step_states", "expected"),
    [
        (states("savepoint", "running", phase="saving"), ["current"]),
        (states("stop", "running", phase="saving"), ["current", "ahead"]),
        (states("stop", "running", phase="ending", saved="/s"), ["done", "current"]),
        (states("stop", "failed", phase="done", saved="/s"), ["done", "failed"]),
        (states("stop", "failed", phase="done"), ["failed", "skipped"]),
        (states("stop", "succeeded", phase="done", saved="/s"), ["done", "done"]),
        (states("rescale", "running", phase="saving"), ["current", "ahead", "ahead"]),
        (
            states("rescale", "running", "restarting", phase="relaunching", saved="/c"),
            ["done", "current", "ahead"],
        ),
        (
            states("rescale", "running", "initializing", phase="relaunching", saved="/c"),
            ["done", "done", "current"],
        ),
        # One that did not run goes on from its newest checkpoint: none is taken.
        (states("rescale", "running", "restarting", phase="relaunching"), ["current", "ahead"]),
        (states("rollback", "running", "initializing", phase="relaunching"), ["done", "current"]),
        (states("rollback", "pending"), ["ahead", "ahead"]),
        (
            states("rollback", "running", "failed", phase="return_due", error="failed"),
            ["done", "failed", "current"],
        ),
        (
            states("rescale", "running", "restarting", phase="returning", saved="/c", error="late"),
            ["done", "done", "failed", "current"],
        ),
        (
            states("rollback", "failed", phase="done", error="failed", has_returned=True),
            ["done", "failed", "done"],
        ),
        (
            states("rollback", "expired", phase="done", error="failed", has_returned=False),
            ["done", "failed", "failed"],
        ),
        (states("rollback", "succeeded", phase="done", error="late"), ["done", "done"]),
        (
            states("upgrade", "running", phase="checking", checks=True, before={}),
            ["current", "ahead", "ahead", "ahead", "ahead"],
        ),
        (
            states("upgrade", "running", phase="saving", checks=True, before={}),
            ["done", "current", "ahead", "ahead", "ahead"],
        ),
        (
            states("upgrade", "running", phase="ending", saved="/s", checks=True, before={}),
            ["done", "done", "current", "ahead", "ahead"],
        ),
        (
            states("upgrade", "running", phase="launch_due", saved="/s", checks=True, before={}),
            ["done", "done", "done", "current", "ahead"],
        ),
        (
            states(
                *("upgrade", "running", "initializing"),
                **{"phase": "relaunching", "saved": "/s", "is_changed": True, "before": {}},
            ),
            ["done", "done", "done", "current"],
        ),
        # A job that was over is not stopped.
        (
            states("upgrade", "running", "restarting", phase="relaunching", checks=True),
            ["done", "current", "ahead"],
        ),
        (
            states("upgrade", "failed", phase="done", checks=True, before={}),
            ["failed", "skipped", "skipped", "skipped", "skipped"],
        ),
        (
            states("upgrade", "failed", phase="done", checks=True, is_checked=True, before={}),
            ["done", "failed", "skipped", "skipped", "skipped"],
        ),
        (
            states(
                *("upgrade", "failed"),
                **{"phase": "done", "saved": "/s", "is_changed": True, "before": {}},
                **{"error": "it raised", "has_returned": True},
            ),
            ["done", "done", "done", "failed", "done"],
        ),
        (
            states("upgrade", "running", phase="saving", error="late", before={}),
            ["failed", "skipped", "skipped", "skipped", "current"],
        ),
        (
            states("upgrade", "running", phase="returning", saved="/s", error="late", before={}),
            ["done", "failed", "skipped", "skipped", "current"],
        ),
        (states("fork", "running", phase="saving"), ["current", "ahead"]),
        (states("fork", "running", phase="forking", saved="/s"), ["done", "current"]),
        (states("fork", "succeeded", phase="done", restore="/s"), ["done"]),
        (states("preview", "running", until="2026", tries=1), ["current"]),
        (states("preview", "expired"), ["failed"]),
    ],
)
def test_what_is_done_what_goes_on_and_what_comes(
    step_states: list[str], expected: list[str]
) -> None:
    assert step_states == expected


@pytest.mark.parametrize("kind", Operation._meta.get_field("kind").choices)
def test_every_kind_has_steps(kind: tuple[str, str]) -> None:
    for status in ("pending", "running", "succeeded", "failed", "expired", "cancelled"):
        assert states(kind[0], status)


@pytest.mark.parametrize(
    ("acknowledged", "text"),
    [
        (Acknowledged(0, 0), "the barriers are being sent"),
        (Acknowledged(3, 18), "3 of 18 subtasks acknowledged"),
        (Acknowledged(18, 18), "all 18 subtasks acknowledged; the manifest is being written"),
        (Acknowledged(18, 18, is_durable=True), "18 of 18 subtasks acknowledged"),
    ],
)
def test_how_far_a_savepoint_has_come_is_counted(acknowledged: Acknowledged, text: str) -> None:
    assert acknowledged.as_json()["text"] == text
    assert acknowledged.as_json()["most"] >= 1


def test_what_will_happen_is_said_with_the_numbers_of_the_job() -> None:
    known = Known(job="flights", checkpoint=7, checkpoint_ms=212, state_bytes=1_240_000)
    (how_much,) = [said for said in effects.list_effects("savepoint", known) if "newest" in said]
    assert how_much == "Its newest checkpoint, 7, holds 1.24 MB and took 212 ms."
    assert not [
        said for said in effects.list_effects("savepoint", Known(job="a")) if "newest" in said
    ]
    said = effects.list_effects("rescale", Known(job="flights", parallelism=2, down_ms=1_800))
    assert said[0].endswith("Its parallelism is 2 now.")
    assert "the last time that took 1.80 s." in said[2]
    over = effects.list_effects("rescale", Known(job="flights", is_over=True))
    assert over[0] == "flights resumes from its newest completed checkpoint."
    assert effects.list_effects("preview", known) == []
