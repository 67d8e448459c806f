"""Slots without a processor: named instead of the network, of operators and of the storage."""

from dataclasses import replace
from typing import Any

import pytest

from checkpoints.verdict import judge
from checkpoints.verdict.facts import Aligning, CpuWait, Edge, Facts, Key, Seen, Slot, Stall
from checkpoints.verdict.judge import Verdict
from checkpoints.verdict.starvation import CPU_WAIT_SHARE
from tests.unit.checkpoints.verdict_cases import (
    IDLE,
    LINE,
    T0,
    Case,
    Channel,
    Graph,
    busy,
    cpu_waits,
    expired,
    held,
    seen,
    times,
)
from weir.protocol.lifecycle import CheckpointStatus, SubtaskStatus

ALL_IDLE = dict.fromkeys(LINE.subtasks(), IDLE)
LATE: Channel = (("enrich", 1), ("hourly", 2))
STACK = '  File "/srv/orders.py", line 41, in enrich\n    work()\n'


def verdict(case: Case, **given: Any) -> Verdict:
    return judge.judge_checkpoint(case.run(**given))


def said(judgement: Verdict) -> str:
    return " ".join([judgement.headline, *judgement.because, *judgement.advice])


def test_a_starved_receiver_is_named_with_slot_host_and_share_and_no_network() -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, cpu_wait={2: 0.62}))
    assert judgement.tone == "warn"
    assert judgement.headline == (
        "Slot 2 on host node-2, where hourly-2 ran, waited 62 % of the time for a processor; the "
        "barrier of enrich-1 reached hourly-2 5.00 s after the first one."
    )
    assert (
        "The loop of slot 2 (host node-2, process 4702) was ready to run and had no processor for "
        "62 % of about two seconds; busy and idle shares include that." in judgement.because
    )
    assert judgement.advice == (
        "See what else runs on host node-2, and whether a container there has a processor limit. "
        "Run fewer slots on it, give it more cores, or move slots to another host.",
    )
    assert judgement.culprits == ("hourly-2",)
    assert judgement.path[0].text == "Hourly step, busy 3 %, without a processor 62 %"
    assert judgement.channel is not None


@pytest.mark.parametrize(
    ("share", "is_named"), [(0.0, False), (CPU_WAIT_SHARE - 0.01, False), (CPU_WAIT_SHARE, True)]
)
def test_a_small_wait_leaves_the_channel_accused(share: float, is_named: bool) -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, cpu_wait={2: share}))
    assert judgement.headline.startswith("Slot 2 on host node-2") is is_named
    assert judgement.headline.startswith("The channel enrich-1 → hourly-2 held") is not is_named
    assert ("check the network" in said(judgement)) is not is_named
    assert any("had no processor" in line for line in judgement.because) is is_named


def test_a_starved_sender_is_named_where_the_receiver_had_a_processor() -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, cpu_wait={1: 0.4, 2: 0.1}))
    assert judgement.headline == (
        "Slot 1 on host node-1, where enrich-1 ran, waited 40 % of the time for a processor; the "
        "barrier of enrich-1 reached hourly-2 5.00 s after the first one."
    )
    assert judgement.culprits == ("enrich-1",)
    assert [hop.name for hop in judgement.path] == ["hourly-2", "enrich-1"]


def test_a_third_slot_that_is_starved_is_not_accused_of_a_channel_between_others() -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, cpu_wait={0: 0.9}))
    assert judgement.headline.startswith("The channel enrich-1 → hourly-2 held")


@pytest.mark.parametrize(
    ("wait", "culprit"),
    [
        (0.0, "hourly-2 was slow, busy 97 %"),
        (0.2, "hourly-2 was slow, busy 97 %"),
        (0.3, "hourly-2 was slow, busy 97 %"),  # It worked for 67 %.
        (0.48, "hourly-2 was slow, busy 97 %"),
        (0.49, "Slot 2 on host node-2, where hourly-2 ran, waited 49 %"),
        (0.9, "Slot 2 on host node-2, where hourly-2 ran, waited 90 %"),
    ],
)
def test_a_busy_operator_stays_accused_until_most_of_it_was_waiting(
    wait: float, culprit: str
) -> None:
    rates = ALL_IDLE | {("hourly", 2): busy(0.97)}
    judgement = verdict(Case(front_ms={("hourly", 2): 5_000}, rates=rates, cpu_wait={2: wait}))
    assert judgement.headline.startswith(culprit)
    # A large wait is told in any case.
    is_told = any("had no processor for" in line for line in judgement.because)
    assert is_told is (wait >= CPU_WAIT_SHARE)
    assert any("what else runs on host node-2" in line for line in judgement.advice) is is_told


@pytest.mark.parametrize(("wait", "culprit"), [(0.3, "sink-1"), (0.6, "hourly-1")])
def test_a_busy_neighbour_in_the_loop_stays_accused_until_most_of_it_was_waiting(
    wait: float, culprit: str
) -> None:
    rates = ALL_IDLE | {("sink", 1): busy(0.92)}
    judgement = verdict(Case(front_ms={("hourly", 1): 3_000}, rates=rates, cpu_wait={1: wait}))
    assert judgement.culprits == (culprit,)
    assert judgement.headline.startswith("Slot 1 on host node-1") is (culprit == "hourly-1")


def test_back_pressure_leads_past_a_starved_slot_to_the_operator_that_is_busy() -> None:
    rates = ALL_IDLE | {("enrich", 1): held(0.9), ("sink", 2): busy(0.99)}
    case = Case(front_ms={("enrich", 1): 5_000}, rates=rates, cpu_wait={1: 0.4})
    assert verdict(case).culprits == ("hourly-1",)  # Nothing that is held back leads further.
    case.rates |= {("hourly", 0): held(0.8)}
    assert verdict(case).culprits == ("sink-2",)


def test_back_pressure_that_leads_to_none_leaves_the_starved_slot_accused() -> None:
    edges = [("source", "enrich", "rebalance"), ("enrich", "sink", "hash")]
    graph = Graph({"source": 2, "enrich": 2, "sink": 1}, edges)
    rates = dict.fromkeys(graph.subtasks(), IDLE) | {("enrich", 1): held(0.9)}
    case = Case(graph, front_ms={("enrich", 1): 5_000}, rates=rates, cpu_wait={1: 0.4})
    assert verdict(case).headline.startswith("Slot 1 on host node-1, where enrich-1 ran, waited")


def test_back_pressure_leads_to_a_starved_slot() -> None:
    rates = ALL_IDLE | {("enrich", 1): held(0.9)}
    judgement = verdict(
        Case(front_ms={("enrich", 1): 5_000}, rates=rates, cpu_wait={0: 0.5, 1: 0.1})
    )
    assert judgement.headline.startswith("Slot 0 on host node-0, where hourly-0 ran, waited 50 %")


def test_several_starved_slots_are_one_cause_and_listed_beside_the_worst() -> None:
    case = Case(
        front_ms={("enrich", 1): 4_000, ("hourly", 0): 3_000},
        rates=ALL_IDLE,
        cpu_wait={0: 0.5, 1: 0.7, 2: 0.1},
    )
    slots = {0: Slot("node-1", 1), 1: Slot("node-1", 2), 2: Slot("node-2", 3)}
    judgement = verdict(case, slots=slots)
    assert judgement.headline.startswith("Slot 1 on host node-1, where enrich-1 ran, waited 70 %")
    assert judgement.culprits == ("enrich-1",)
    assert "2 slots of this job ran on that host." in judgement.because
    assert (
        "Other slots without a processor: slot 0 (host node-1, process 1) 50 %."
        in judgement.because
    )


def test_a_busy_operator_and_a_starved_slot_are_both_named() -> None:
    rates = ALL_IDLE | {("hourly", 0): busy(0.98)}
    case = Case(
        front_ms={("enrich", 1): 2_000, ("hourly", 0): 3_000}, rates=rates, cpu_wait={1: 0.6}
    )
    judgement = verdict(case)
    assert judgement.headline.startswith(
        "Two operators were slow, hourly-0 (busy 98 %) most, then enrich-1 (slot 1 on host node-1 "
        "waited 60 % of the time for a processor);"
    )
    assert judgement.culprits == ("hourly-0", "enrich-1")


def test_a_slot_whose_host_is_not_known_is_named_without_it() -> None:
    case = Case(channel_ms={LATE: 5_000}, rates=ALL_IDLE, cpu_wait={2: 0.62})
    judgement = verdict(case, slots={})
    assert judgement.headline.startswith("Slot 2, where hourly-2 ran, waited 62 % of the time for")
    assert "See what else runs on the host of slot 2," in judgement.advice[0]
    assert not any("slots of this job" in line for line in judgement.because)


def test_a_source_that_takes_up_its_trigger_late_is_told_with_its_starved_slot() -> None:
    case = Case(front_ms={("source", 2): 3_000}, rates=ALL_IDLE, cpu_wait={2: 0.5})
    judgement = verdict(case)
    assert judgement.headline.startswith("Slot 2 on host node-2, where source-2 ran, waited 50 %")
    assert "the source source-2 took up the trigger only after 3.00 s" in judgement.headline


def test_a_calm_checkpoint_says_nothing_of_a_starved_slot() -> None:
    judgement = verdict(Case(rates=ALL_IDLE, cpu_wait={0: 0.9, 1: 0.9, 2: 0.9}))
    assert judgement.tone == "good"
    assert "a processor" not in said(judgement)


# Sync and async -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("wait", "is_named"), [(0.1, False), (0.5, True)])
def test_a_slow_copy_in_a_starved_slot(wait: float, is_named: bool) -> None:
    case = Case(sync_ms={("hourly", 1): 4_000.0}, rates=ALL_IDLE, cpu_wait={1: wait})
    judgement = verdict(case)
    assert "hourly-1 copied its state for 4.00 s" in judgement.headline
    starved = "Slot 1 on host node-1, where hourly-1 ran, waited 50 % of the time for a processor; "
    assert judgement.headline.startswith(starved) is is_named
    assert ("what else runs on host node-1" in judgement.advice[0]) is is_named


def test_one_slow_disk_in_a_starved_slot() -> None:
    written = dict.fromkeys(LINE.subtasks(), 2_000_000)
    case = Case(async_ms={("hourly", 1): 8_000.0}, written=written, rates=ALL_IDLE)
    assert verdict(case).headline.startswith("The storage was slow for hourly-1 alone")
    case.cpu_wait = {1: 0.5}
    judgement = verdict(case)
    assert judgement.headline.startswith("Slot 1 on host node-1, where hourly-1 ran, waited 50 %")
    assert "the storage was slow for hourly-1 alone" in judgement.headline
    case.cpu_wait = {2: 0.9}  # Another slot.
    assert verdict(case).headline.startswith("The storage was slow for hourly-1 alone")


def test_a_storage_that_is_slow_for_slots_with_a_processor_too_stays_accused() -> None:
    slow = dict.fromkeys(LINE.subtasks(), 8_000.0)
    written = dict.fromkeys(LINE.subtasks(), 2_000_000)
    case = Case(async_ms=slow, written=written, rates=ALL_IDLE, cpu_wait={0: 0.5, 1: 0.5})
    judgement = verdict(case)
    assert judgement.headline.startswith("The checkpoint storage was slow: slot 0 wrote ")
    assert "All slots waited alike" in said(judgement)
    case.cpu_wait[2] = 0.5
    judgement = verdict(case)
    assert " of the time for a processor; the checkpoint storage was slow" in judgement.headline
    assert "All slots waited alike" not in said(judgement)


def test_a_large_state_stays_accused() -> None:
    slow = dict.fromkeys(LINE.subtasks(), 8_000.0)
    written = dict.fromkeys(LINE.subtasks(), 400_000_000)
    waits = dict.fromkeys(range(3), 0.5)
    judgement = verdict(Case(async_ms=slow, written=written, rates=ALL_IDLE, cpu_wait=waits))
    assert judgement.headline.startswith("The state is large: ")


# Stuck, silent, under way -------------------------------------------------------------------------


def test_a_stuck_call_is_named_before_its_starved_slot() -> None:
    stalls = {("hourly", 1): Stall(T0 + 100, 4_800.0, STACK)}
    waits = {1: CpuWait(0.6, 0.9)}
    evidence = seen(LINE, ALL_IDLE, stalls=stalls, cpu_waits=waits)
    judgement = verdict(Case(front_ms={("hourly", 1): 5_000}), evidence=evidence)
    assert judgement.headline == "hourly-1 was stuck in enrich (orders.py:41) for 4.80 s."
    assert any("had no processor for 60 %" in line for line in judgement.because)
    assert any("what else runs on host node-1" in line for line in judgement.advice)


def waits(*missing: tuple[Key, Seen], cpu_wait: dict[int, float], **given: Any) -> Facts:
    """A checkpoint whose missing subtasks were seen like this, in slots that waited so long."""
    evidence = seen(LINE, ALL_IDLE, cpu_waits=cpu_waits(ALL_IDLE, cpu_wait))
    return Facts(
        **{
            "times": expired(),
            "operators": LINE.operators,
            "edges": [Edge(*edge) for edge in LINE.edges],
            "evidence": replace(
                evidence,
                subtasks={**evidence.subtasks, **dict(missing)},
                missing=[key for key, _ in missing],
                missing_count=len(missing),
            ),
            "slots": {1: Slot("node-1", 4_701)},
            **given,
        }
    )


def running(**given: Any) -> Seen:
    return Seen(SubtaskStatus.RUNNING, **given)


ALIGNING = running(rates=IDLE, aligning=Aligning(T0, 590_000.0, ["hourly-1"], 1))
SINKS = [(("sink", index), ALIGNING) for index in range(3)]


@pytest.mark.parametrize(("wait", "is_named"), [(0.1, False), (0.7, True)])
def test_an_expired_checkpoint_names_the_starved_slot(wait: float, is_named: bool) -> None:
    missing = (("hourly", 1), running(rates=IDLE))
    judgement = judge.judge_checkpoint(waits(*SINKS, missing, cpu_wait={1: wait}))
    starved = "because slot 1 on host node-1, where hourly-1 ran, waited 70 % of the time for"
    assert (starved in judgement.headline) is is_named
    assert judgement.culprits == ("hourly-1",)


def test_a_silent_slot_is_silent_first() -> None:
    silent = (("hourly", 1), running(rates=IDLE, silent_ms=12_000.0))
    judgement = judge.judge_checkpoint(waits(*SINKS, silent, cpu_wait={1: 0.7}))
    assert "had reported nothing for 12 s" in judgement.headline


@pytest.mark.parametrize(
    ("wait", "culprits"), [(0.1, ("enrich-1", "hourly-2")), (0.7, ("enrich-1",))]
)
def test_a_barrier_under_way_from_a_starved_slot(wait: float, culprits: tuple[str, ...]) -> None:
    aligning = running(rates=IDLE, aligning=Aligning(T0, 590_000.0, ["enrich-1"], 1))
    judgement = judge.judge_checkpoint(waits((("hourly", 2), aligning), cpu_wait={1: wait}))
    assert "the barrier that enrich-1 sent had not reached hourly-2" in judgement.headline
    assert judgement.culprits == culprits
    assert ("network" in said(judgement)) is (wait == 0.1)


@pytest.mark.parametrize(("wait", "is_named"), [(0.1, False), (0.7, True)])
def test_a_snapshot_that_is_being_written_in_a_starved_slot(wait: float, is_named: bool) -> None:
    writes = (("hourly", 1), running(rates=IDLE, sent_on=True))
    judgement = judge.judge_checkpoint(waits(*SINKS, writes, cpu_wait={1: wait}))
    assert ("slot 1 on host node-1, where hourly-1 ran, waited" in judgement.headline) is is_named
    assert ("hourly-1 had sent its barrier on" in judgement.headline) is not is_named
    # The list of the missing ones is as long as ever.
    assert any("it writes its snapshot" in line for line in judgement.because)


def test_two_starved_slots_that_are_waited_for_are_told_once() -> None:
    writes = running(rates=IDLE, sent_on=True)
    missing = [(("hourly", 1), writes), (("enrich", 0), writes)]
    judgement = judge.judge_checkpoint(waits(*missing, cpu_wait={0: 0.5, 1: 0.7}))
    assert judgement.headline.count("for a processor") == 1
    assert not any(line.startswith("Also: ") for line in judgement.because)
    assert any(line.startswith("Other slots without a proc") for line in judgement.because)


def test_one_under_way_tells_it_in_the_present() -> None:
    late = times(
        status=CheckpointStatus.PENDING, duration_ms=None, settled_at_ms=None, acknowledged_count=8
    )
    missing = (("hourly", 1), running(rates=IDLE))
    judgement = judge.judge_checkpoint(waits(*SINKS, missing, cpu_wait={1: 0.7}, times=late))
    assert judgement.headline.endswith(
        "because slot 1 on host node-1, where hourly-1 runs, waits 70 % of the time for a "
        "processor."
    )
    assert any("is ready to run and has no processor for 70 %" in b for b in judgement.because)
