"""Schedules of the soak: the same for a seed, and every kind of fault in its turn."""

from collections import Counter

import pytest

from tests.soak.schedule import (
    DELAY_MAX_MS,
    KINDS,
    OPERATIONS,
    PARALLELISM,
    Act,
    Kind,
    Where,
    schedule_of,
)

SEEDS = range(60)


@pytest.mark.parametrize("where", Where)
def test_a_seed_is_one_schedule(where: Where) -> None:
    drawn = [schedule_of(seed, where) for seed in SEEDS]
    assert drawn == [schedule_of(seed, where) for seed in SEEDS]
    assert len({schedule.faults for schedule in drawn}) == len(SEEDS)


@pytest.mark.parametrize("where", Where)
def test_each_kind_comes_once_before_any_comes_twice(where: Where) -> None:
    kinds = KINDS[where]
    for seed in SEEDS:
        faults = schedule_of(seed, where, 2 * len(kinds)).faults
        half = len(kinds)
        assert {fault.kind for fault in faults[:half]} == set(kinds)
        assert {fault.kind for fault in faults[half:]} == set(kinds)


@pytest.mark.parametrize("where", Where)
def test_short_rounds_do_all_kinds_within_some_seeds(where: Where) -> None:
    met = Counter(fault.kind for seed in SEEDS for fault in schedule_of(seed, where).faults)
    assert met.keys() == set(KINDS[where])


def test_acts_that_cannot_be_done_are_left_out() -> None:
    without = {Act.FULL_DISK, Act.REFUSE}
    acts = {
        fault.kind.act
        for seed in SEEDS
        for fault in schedule_of(seed, Where.SPARK, without=without).faults
    }
    assert acts == set(Act) - without - {Act.RESTART}


def test_the_share_of_faults_that_overlap_can_be_chosen() -> None:
    for overlaps in (0.0, 1.0):
        first, *others = schedule_of(5, Where.PLANE, 40, overlaps=overlaps).faults
        assert not first.overlaps
        assert {fault.overlaps for fault in others} == {bool(overlaps)}


def test_the_first_fault_waits_for_a_checkpoint_and_some_others_do_not() -> None:
    schedules = [schedule_of(seed, Where.SPARK) for seed in SEEDS]
    assert not any(schedule.faults[0].overlaps for schedule in schedules)
    later = [fault.overlaps for schedule in schedules for fault in schedule.faults[1:]]
    assert 0 < sum(later) < len(later)
    delays = [fault.delay_ms for schedule in schedules for fault in schedule.faults]
    assert 0 <= min(delays) < max(delays) < DELAY_MAX_MS


def test_ctrl_c_is_for_jobs_with_a_terminal_only() -> None:
    interrupt = Kind(Act.INTERRUPT, "driver")
    assert interrupt in KINDS[Where.SPARK]
    assert interrupt not in KINDS[Where.PLANE]


def test_what_restarts_a_job_in_library_mode_is_ctrl_c() -> None:
    operations = set(map(Kind, OPERATIONS))
    assert operations <= set(KINDS[Where.PLANE])
    assert operations - set(KINDS[Where.SPARK]) == {Kind(Act.RESTART)}


def test_a_job_is_rescaled_to_more_slots_to_fewer_and_to_as_many_as_it_has() -> None:
    drawn = {fault.parallelism for seed in SEEDS for fault in schedule_of(seed, Where.PLANE).faults}
    assert min(drawn) < PARALLELISM < max(drawn)
    assert PARALLELISM in drawn


def test_a_schedule_is_written_with_its_kinds_in_words() -> None:
    schedule = schedule_of(5, Where.PLANE)
    told = schedule.as_json()
    assert told["where"] == "control-plane"
    assert [fault["kind"] for fault in told["faults"]] == [str(f.kind) for f in schedule.faults]
