"""Run now, wait, or refuse."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import pending, request
from weir.config import CheckpointConfig, CheckpointingMode
from weir.protocol.elements import Alignment, BarrierOptions, CheckpointKind
from weir.protocol.lifecycle import FailureReason
from weir.protocol.pending import PendingCheckpoint, TriggerRequest
from weir.protocol.scheduling import (
    QUEUE_MAX,
    Decision,
    Refuse,
    Run,
    barrier_options,
    decide,
    effective_interval_ms,
    enqueue,
    following_due_ms,
)

SAVEPOINT = CheckpointKind.SAVEPOINT
STOPPING = CheckpointConfig(mode=CheckpointingMode.STOP_THE_WORLD)
PERIODIC, MANUAL, ASKED_LATER = request(None), request("a", at_ms=5), request("b", at_ms=9)
SAVE = request("s", SAVEPOINT, at_ms=99)


def decided(
    queue: list[TriggerRequest],
    under_way: list[PendingCheckpoint],
    *,
    last_completion_ms: int | None = None,
    now_ms: int = 0,
    **settings: Any,
) -> Decision:
    return decide(
        queue,
        under_way,
        CheckpointConfig(**settings),
        last_completion_ms=last_completion_ms,
        now_ms=now_ms,
    )


@given(st.permutations([PERIODIC, MANUAL, ASKED_LATER, SAVE]))
def test_savepoints_go_first_then_what_was_asked_for_then_the_clock(
    arriving: list[TriggerRequest],
) -> None:
    queue: tuple[TriggerRequest, ...] = ()
    for wanted in arriving:
        queue, refused = enqueue(queue, wanted, CheckpointConfig())
        assert refused is None
    assert queue == (SAVE, MANUAL, ASKED_LATER, PERIODIC)


def test_equal_requests_keep_the_order_in_which_they_came() -> None:
    queue: tuple[TriggerRequest, ...] = ()
    for name in "cab":
        queue, _ = enqueue(queue, request(name), CheckpointConfig())
    assert [waiting.request_id for waiting in queue] == ["c", "a", "b"]


def test_a_full_queue_takes_a_savepoint_only_in_place_of_the_clocks_request() -> None:
    asked = tuple(request(f"q{i}") for i in range(QUEUE_MAX))
    assert enqueue(asked, SAVE, CheckpointConfig()) == (asked, SAVE)
    mixed = (*asked[:-1], PERIODIC)
    assert enqueue(mixed, SAVE, CheckpointConfig()) == ((SAVE, *asked[:-1]), PERIODIC)


def test_an_empty_queue_has_nothing_to_run() -> None:
    assert decided([], []) is None


def test_a_checkpoint_runs_only_while_fewer_than_concurrent_max_are_under_way() -> None:
    assert decided([MANUAL], []) == Run(MANUAL)
    assert decided([MANUAL], [pending(1)]) is None
    assert decided([MANUAL], [pending(1)], concurrent_max=2) == Run(MANUAL)


def test_a_savepoint_is_forced_unless_checkpoints_may_be_unaligned_or_stop_the_world() -> None:
    assert decided([SAVE], [pending(1)]) == Run(SAVE)
    assert decided([SAVE], [pending(1)], alignment_timeout_ms=100) is None
    assert decided([SAVE], [pending(1)], mode=CheckpointingMode.STOP_THE_WORLD) is None


def test_nothing_runs_behind_a_stop() -> None:
    assert decided([SAVE], [pending(1, kind=CheckpointKind.STOP_DRAIN)]) is None


@pytest.mark.parametrize(("now_ms", "retry_at_ms"), [(100, 150), (149, 150), (20, 70)])
def test_the_clock_waits_for_the_minimum_pause_even_when_time_was_set_back(
    now_ms: int, retry_at_ms: int
) -> None:
    early = decided([PERIODIC], [], last_completion_ms=100, min_pause_ms=50, now_ms=now_ms)
    reason = FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    assert early == Refuse(PERIODIC, reason, retry_at_ms)


def test_the_minimum_pause_ends_on_time_and_binds_the_clock_only() -> None:
    late = decided([PERIODIC], [], last_completion_ms=100, min_pause_ms=50, now_ms=150)
    assert late == Run(PERIODIC)
    for asked in (MANUAL, SAVE):
        at_once = decided([asked], [], last_completion_ms=100, min_pause_ms=50, now_ms=100)
        assert at_once == Run(asked)


@pytest.mark.parametrize(
    ("config", "kind", "alignment", "timeout_ms"),
    [
        (CheckpointConfig(), CheckpointKind.CHECKPOINT, Alignment.ALIGNED, None),
        (
            CheckpointConfig(alignment_timeout_ms=0),
            CheckpointKind.CHECKPOINT,
            Alignment.UNALIGNED,
            None,
        ),
        (
            CheckpointConfig(alignment_timeout_ms=600),
            CheckpointKind.CHECKPOINT,
            Alignment.ALIGNED,
            600,
        ),
        (
            CheckpointConfig(mode=CheckpointingMode.AT_LEAST_ONCE, alignment_timeout_ms=0),
            CheckpointKind.CHECKPOINT,
            Alignment.AT_LEAST_ONCE,
            None,
        ),
        (CheckpointConfig(alignment_timeout_ms=0), SAVEPOINT, Alignment.ALIGNED, None),
        (STOPPING, CheckpointKind.CHECKPOINT, Alignment.STOP_THE_WORLD, None),
        (STOPPING, SAVEPOINT, Alignment.ALIGNED, None),
        (
            CheckpointConfig(mode=CheckpointingMode.AT_LEAST_ONCE),
            CheckpointKind.STOP_SUSPEND,
            Alignment.ALIGNED,
            None,
        ),
    ],
)
def test_settings_and_kind_decide_how_a_barrier_aligns(
    config: CheckpointConfig, kind: CheckpointKind, alignment: Alignment, timeout_ms: int | None
) -> None:
    assert barrier_options(config, kind) == BarrierOptions(kind, alignment, timeout_ms)


def test_the_interval_is_never_below_the_minimum_pause() -> None:
    assert effective_interval_ms(CheckpointConfig()) is None
    assert effective_interval_ms(CheckpointConfig(interval_ms=10, min_pause_ms=90)) == 90


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(0, 10**9))
def test_the_next_due_time_is_the_first_on_the_grid_after_now(
    due_ms: int, interval_ms: int, late_ms: int
) -> None:
    now_ms = due_ms + late_ms
    following_ms = following_due_ms(due_ms, interval_ms, now_ms=now_ms)
    assert now_ms < following_ms <= now_ms + interval_ms
    assert (following_ms - due_ms) % interval_ms == 0
