"""The causes that a verdict names: injected delays, and cases of every kind, as values."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from checkpoints.verdict import judge
from checkpoints.verdict.facts import (
    Aligning,
    Edge,
    Evidence,
    Facts,
    Key,
    Seen,
    Slot,
    Stall,
    name_of,
)
from checkpoints.verdict.judge import Verdict
from checkpoints.verdict.result import Cause
from checkpoints.verdict.stacks import error, where
from controlplane.base.formatting import duration
from tests.unit.checkpoints.verdict_cases import (
    IDLE,
    LINE,
    T0,
    Case,
    Channel,
    Graph,
    busy,
    expired,
    held,
    seen,
    times,
)
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, SubtaskStatus
from weir.protocol.slot_memory import KILLED_FOR_MEMORY

STACK = """  File "/srv/pipelines/orders.py", line 41, in enrich
    rates = requests.get(url)
  File "/usr/lib/python3.11/site-packages/requests/api.py", line 73, in get
    return request("get", url)
"""
EVERYBODY_IDLE = dict.fromkeys(LINE.subtasks(), IDLE)
LATE: Channel = (("enrich", 1), ("hourly", 2))


def verdict(case: Case, **given: Any) -> Verdict:
    return judge.judge_checkpoint(case.run(**given))


def said(judgement: Verdict) -> str:
    return " ".join([judgement.headline, *judgement.because])


# A channel that held the barrier ------------------------------------------------------------------


def test_a_late_channel_is_named_with_its_delay_and_bytes() -> None:
    judgement = verdict(
        Case(channel_ms={LATE: 5_000}, queued={LATE: 812_000}, rates=EVERYBODY_IDLE)
    )
    assert judgement.tone == "warn"
    assert judgement.headline == (
        "The channel enrich-1 → hourly-2 held the barrier: it came 5.00 s after the first one, "
        "behind 812 kB."
    )
    assert judgement.channel is not None
    assert (judgement.channel.sender, judgement.channel.receiver) == ("enrich-1", "hourly-2")
    assert [hop.name for hop in judgement.path] == ["hourly-2", "enrich-1"]
    assert "hourly-2 itself had time: busy 3 %." in judgement.because
    assert "the network from slot 1 (host node-1, process 4701)" in judgement.advice[0]


def test_a_busy_share_that_was_not_reported_is_not_claimed() -> None:
    judgement = verdict(Case(channel_ms={LATE: 5_000}))
    assert "The busy share of hourly-2 was not reported." in judgement.because
    assert "busy 0 %" not in said(judgement)


def test_a_slow_sender_is_named_before_the_channel_that_it_made_late() -> None:
    rates = EVERYBODY_IDLE | {("enrich", 1): busy(0.97)}
    judgement = verdict(Case(front_ms={("enrich", 1): 5_000}, rates=rates))
    assert judgement.headline.startswith("enrich-1 was slow, busy 97 % of the time; its barrier")
    assert judgement.culprits == ("enrich-1",)
    assert judgement.channel is not None
    assert judgement.channel.sender == "enrich-1"
    assert judgement.path[-1].name == "enrich-1"


def test_back_pressure_leads_down_to_the_one_that_is_busy() -> None:
    rates = EVERYBODY_IDLE | {
        ("enrich", 1): held(0.9),
        ("hourly", 0): held(0.8),
        ("sink", 2): busy(0.99),
    }
    judgement = verdict(Case(front_ms={("enrich", 1): 5_000}, rates=rates))
    assert judgement.headline.startswith("sink-2 was slow, busy 99 % of the time")
    assert [(hop.name, hop.text) for hop in judgement.path] == [
        ("hourly-0", "Hourly step, back-pressured 80 %"),
        ("enrich-1", "Enrich step, back-pressured 90 %"),
        ("sink-2", "Sink step, busy 99 %"),
    ]


def test_records_in_front_of_a_single_channel_are_start_delay_of_a_slow_operator() -> None:
    graph = Graph({"source": 1, "enrich": 1}, [("source", "enrich", "forward")])
    case = Case(graph, front_ms={("enrich", 0): 4_000}, rates={("enrich", 0): busy(1.0)})
    judgement = verdict(case)
    assert judgement.headline == (
        "enrich-0 was slow, busy 100 % of the time; the barrier of source-0 was under way for "
        "4.00 s to enrich-0."
    )


def test_a_slot_that_works_for_another_subtask_is_named_by_that_one() -> None:
    rates = EVERYBODY_IDLE | {("sink", 1): busy(0.92)}
    judgement = verdict(Case(front_ms={("hourly", 1): 3_000}, rates=rates))
    assert judgement.culprits == ("sink-1",)
    assert "sink-1 and hourly-1 share the loop of slot 1" in said(judgement)


def test_two_slow_operators_are_both_named_the_worse_first() -> None:
    rates = EVERYBODY_IDLE | {("enrich", 1): busy(0.9), ("hourly", 0): busy(0.98)}
    judgement = verdict(Case(front_ms={("enrich", 1): 2_000, ("hourly", 0): 3_000}, rates=rates))
    assert judgement.headline.startswith(
        "Two operators were slow, hourly-0 (busy 98 %) most, then enrich-1 (busy 90 %)"
    )
    assert judgement.culprits == ("hourly-0", "enrich-1")


def test_two_slow_operators_on_branches_of_their_own_are_both_named() -> None:
    graph = Graph(
        {"source": 2, "left": 2, "right": 2},
        [("source", "left", "hash"), ("source", "right", "hash")],
    )
    rates = dict.fromkeys(graph.subtasks(), IDLE)
    rates |= {("left", 0): busy(0.8), ("right", 1): busy(0.95)}
    judgement = verdict(
        Case(graph, front_ms={("left", 0): 3_000, ("right", 1): 4_000}, rates=rates)
    )
    assert judgement.culprits == ("right-1", "left-0")


def test_a_source_whose_trigger_is_late_is_named() -> None:
    judgement = verdict(Case(front_ms={("source", 2): 3_000}, rates=EVERYBODY_IDLE))
    assert judgement.culprits == ("source-2",)
    assert "source source-2 took up the trigger only after 3.00 s" in judgement.headline


# A skewed key -------------------------------------------------------------------------------------


def test_a_skewed_key_is_named_with_its_factor_and_advice() -> None:
    records = dict.fromkeys([("hourly", 0), ("hourly", 1)], 157_000) | {("hourly", 2): 1_240_000}
    rates = EVERYBODY_IDLE | {("hourly", 2): busy(0.97)}
    judgement = verdict(Case(channel_ms={LATE: 5_000}, records=records, rates=rates))
    assert judgement.headline.startswith(
        "hourly-2 was slow, busy 97 % of the time: it got 7.9 times the records of its siblings"
    )
    assert (
        "hourly-2 got 1,240,000 records; the median of its siblings is 157,000."
        in judgement.because
    )
    assert any("salt the key" in line for line in judgement.advice)
    assert any("More parallelism does not help" in line for line in judgement.advice)


def test_what_the_headline_tells_of_the_culprit_is_not_told_again() -> None:
    judgement = judge.judge_checkpoint(waits(*SINKS, (("hourly", 1), running(rates=busy(0.99)))))
    assert "hourly-1 was slow, busy 99 % of the time" in judgement.headline
    assert [line for line in judgement.because if "hourly-1 99 %" in line]
    assert not any(line.startswith("hourly-1: ") for line in judgement.because)
    assert any(line.startswith("sink-0: aligning") for line in judgement.because)


def test_a_skewed_source_has_no_operator_before_it_to_spread_its_records() -> None:
    judgement = judge.judge_checkpoint(
        waits(
            (("source", 1), running(rates=busy(0.97, 60_000.0))),
            *((("source", index), running(rates=busy(0.1, 9_000.0))) for index in (0, 2)),
        )
    )
    assert "times the records of its siblings" in judgement.headline
    assert judgement.advice[0].startswith("Give the source ")
    assert not any("rebalance" in line for line in judgement.advice)


def skewed_since(own: int, *others: int) -> Verdict:
    """``hourly-2`` is slow and took ``own`` records since the checkpoint before, of 10,000."""
    since = {("hourly", 2): own} | {("hourly", i): n for i, n in enumerate(others)}
    before = {key: 10_000 - n for key, n in since.items()}
    rates = EVERYBODY_IDLE | {("hourly", 2): busy(0.97)}
    return verdict(Case(front_ms={("hourly", 2): 5_000}, rates=rates), records_before=before)


def test_a_skew_shows_in_the_records_since_the_checkpoint_before() -> None:
    """Of a job that has run for long the records of all time hide a key that came up of late."""
    judgement = skewed_since(9_000, 1_000, 1_100)
    assert "8.6 times the records of its siblings" in judgement.headline
    assert (
        "hourly-2 got 9,000 records since the checkpoint before; the median of its siblings is "
        "1,050." in judgement.because
    )
    assert judgement.cause is Cause.SKEWED


def test_a_window_in_which_siblings_were_blocked_shows_no_skew() -> None:
    """Blocked for an alignment they take no records, which are equally many between barriers."""
    judgement = skewed_since(5_000, 4_900, 5_100)
    assert judgement.headline.startswith("hourly-2 was slow, busy 97 % of the time; its barrier")
    rates = {key: busy(0.0, 0.0) for key in LINE.subtasks()} | {("hourly", 2): busy(0.97, 700.0)}
    facts = Case(front_ms={("hourly", 2): 5_000}, rates=rates).run()
    assert any("Only some subtasks" in line for line in judge.judge_checkpoint(facts).advice)
    acks = {
        key: replace(ack, alignment_ms=4_000.0) if key in (("hourly", 0), ("hourly", 1)) else ack
        for key, ack in facts.acks.items()
    }
    judgement = judge.judge_checkpoint(replace(facts, acks=acks))
    assert judgement.culprits == ("hourly-2",)
    assert "records" not in judgement.headline
    assert not any("on average" in line for line in judgement.because)
    assert not any("Only some subtasks" in line for line in judgement.advice)


def test_a_subtask_that_gets_all_records_is_not_given_a_factor() -> None:
    assert "it got nearly all records;" in skewed_since(900, 0, 0).headline


def test_records_of_a_subtask_that_has_not_acknowledged_count_so_far() -> None:
    """A sibling without the barrier lacks records that are to come, so it compares nothing."""
    acks = {("hourly", index): Case().run().acks["hourly", index] for index in (0, 2)}
    before = {("hourly", index): 9_600 for index in range(3)}
    slow = running(rates=busy(0.99), records=13_000)
    judgement = judge.judge_checkpoint(
        waits(*SINKS, (("hourly", 1), slow), acks=acks, records_before=before)
    )
    assert "8.5 times the records of its siblings" in judgement.headline
    judgement = judge.judge_checkpoint(
        waits((("hourly", 1), slow), (("hourly", 0), running(records=9_600)), records_before=before)
    )
    assert judgement.cause is Cause.BUSY


def test_barriers_that_are_all_late_at_the_end_were_under_way() -> None:
    """No subtask behind it had all other barriers, and its own came together."""
    judgement = verdict(Case(front_ms={("sink", 2): 5_000}, rates={("sink", 2): busy(0.9)}))
    assert "was under way for 5.00 s to sink-2" in judgement.headline


def test_a_busy_subtask_with_as_many_records_as_its_siblings_is_not_called_skewed() -> None:
    rates = EVERYBODY_IDLE | {("hourly", 2): busy(0.97)}
    judgement = verdict(Case(front_ms={("hourly", 2): 5_000}, rates=rates))
    assert "siblings" not in judgement.headline
    assert "no more records than their siblings" in judgement.advice[0]


# Storage ------------------------------------------------------------------------------------------


def written(size: int, **more: int) -> dict[Key, int]:
    return dict.fromkeys(LINE.subtasks(), size)


def test_a_slow_storage_is_told_from_a_large_state_by_its_throughput() -> None:
    slow = dict.fromkeys(LINE.subtasks(), 8_000.0)
    judgement = verdict(Case(async_ms=slow, written=written(2_000_000)))
    assert judgement.headline.startswith("The checkpoint storage was slow: slot ")
    assert "8.00 MB in 8.00 s, 1.00 MB/s" in judgement.headline
    assert "All slots waited alike" in said(judgement)
    judgement = verdict(Case(async_ms=slow, written=written(400_000_000)))
    assert judgement.headline.startswith("The state is large: ")
    assert "200 MB/s" in judgement.headline


def test_one_slow_disk_is_named_by_its_host() -> None:
    judgement = verdict(Case(async_ms={("hourly", 1): 8_000.0}, written=written(2_000_000)))
    assert judgement.headline.startswith("The storage was slow for hourly-1 alone")
    assert judgement.culprits == ("hourly-1",)
    assert "slot 1 (host node-1, process 4701)" in judgement.advice[0]


def test_a_long_sync_part_is_the_snapshot_code() -> None:
    judgement = verdict(Case(sync_ms={("hourly", 1): 4_000.0}))
    assert judgement.headline == (
        "hourly-1 copied its state for 4.00 s, which held up its loop (sync part)."
    )
    assert "Python objects" in judgement.advice[0]


def test_the_coordinators_part_is_told_from_the_subtasks() -> None:
    late = Case().run()
    acks = {k: replace(a, acknowledged_at_ms=T0 + 9_000) for k, a in late.acks.items()}
    took = times(duration_ms=9_010, settled_at_ms=T0 + 9_010)
    judgement = judge.judge_checkpoint(replace(late, acks=acks, times=took))
    assert judgement.headline.startswith("The acknowledgements took 8.99 s")
    judgement = judge.judge_checkpoint(replace(late, times=replace(took, duration_ms=9_010)))
    assert judgement.headline.startswith("Writing the manifest took ")


# A stuck function, a silent slot ------------------------------------------------------------------


def test_a_stuck_function_is_named_with_file_line_and_stack() -> None:
    stall = Stall(T0 + 100, 4_800.0, STACK)
    evidence = seen(LINE, EVERYBODY_IDLE, stalls={("hourly", 1): stall})
    judgement = verdict(Case(front_ms={("hourly", 1): 5_000}), evidence=evidence)
    assert judgement.headline == "hourly-1 was stuck in enrich (orders.py:41) for 4.80 s."
    assert "did not return for 4.80 s" in judgement.advice[0]  # It has returned since.
    assert judgement.stack == STACK
    assert judgement.culprits == ("hourly-1",)


def test_a_stall_in_the_slot_explains_its_other_subtasks() -> None:
    stall = Stall(T0 + 100, 4_800.0, STACK)
    evidence = seen(LINE, EVERYBODY_IDLE, stalls={("sink", 1): stall})
    judgement = verdict(Case(front_ms={("enrich", 1): 5_000}), evidence=evidence)
    assert judgement.culprits == ("sink-1",)


def test_a_stall_of_another_time_is_not_to_blame() -> None:
    evidence = seen(LINE, EVERYBODY_IDLE, stalls={("sink", 1): Stall(T0 - 9_000, 1_500.0, STACK)})
    judgement = verdict(Case(async_ms={("hourly", 0): 8_000.0}), evidence=evidence)
    assert "stuck" not in judgement.headline


def waits(*missing: tuple[Key, Seen], **given: Any) -> Facts:
    """A checkpoint whose missing subtasks were seen like this."""
    evidence = seen(LINE, EVERYBODY_IDLE)
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


def test_an_expired_checkpoint_names_who_was_waited_for_not_who_waited() -> None:
    judgement = judge.judge_checkpoint(waits(*SINKS, (("hourly", 1), running(rates=busy(0.99)))))
    assert judgement.tone == "bad"
    assert judgement.headline == (
        "Timed out after 10 min 00 s because hourly-1 was slow, busy 99 % of the time; 4 subtasks "
        "never acknowledged: sink-0, sink-1, sink-2, hourly-1."
    )
    assert judgement.culprits == ("hourly-1",)
    assert (
        "sink-0: aligning for 9 min 50 s, without the barrier of hourly-1, busy 3 %."
        in judgement.because
    )


@pytest.mark.parametrize(
    ("doing", "words"),
    [
        (running(stall=Stall(T0, 590_000.0, STACK)), "hourly-1 was stuck in enrich (orders.py:41)"),
        (
            running(rates=IDLE, silent_ms=12_000.0),
            "hourly-1 ran, was frozen: it had reported nothing for 12 s",
        ),
        (
            running(rates=IDLE, sent_on=True),
            "hourly-1 had sent its barrier on and was writing its snapshot",
        ),
        (Seen(SubtaskStatus.FAILED), "hourly-1 was in status failed"),
    ],
)
def test_what_the_missing_one_was_doing_is_said(doing: Seen, words: str) -> None:
    judgement = judge.judge_checkpoint(waits(*SINKS, (("hourly", 1), doing)))
    assert words in judgement.headline
    assert judgement.culprits == ("hourly-1",)


def test_who_sent_its_barrier_to_one_that_acknowledged_is_writing() -> None:
    got = Case().run()
    gates = {key: of_sink for key, of_sink in got.gates.items() if key[0] == "sink"}
    judgement = judge.judge_checkpoint(waits((("hourly", 1), running(rates=IDLE)), gates=gates))
    assert "hourly-1 had sent its barrier on and was writing its snapshot" in judgement.headline


def test_the_share_of_who_is_waited_for_is_said_once() -> None:
    judgement = judge.judge_checkpoint(waits((("source", 1), running(rates=IDLE))))
    assert [line for line in judgement.because if "busy 3 %" in line] == ["source-1: busy 3 %."]


def test_a_back_pressured_one_leads_to_who_holds_it_back() -> None:
    subtasks = [
        (("enrich", 0), running(rates=held(0.93))),
        (("hourly", 2), running(rates=busy(0.99))),
    ]
    judgement = judge.judge_checkpoint(waits(*subtasks))
    assert "hourly-2 was slow, busy 99 %" in judgement.headline
    assert any(line.startswith("enrich-0: ") and "93 %" in line for line in judgement.because)


def test_a_barrier_that_was_sent_and_did_not_arrive_is_a_channels() -> None:
    aligning = running(rates=IDLE, aligning=Aligning(T0, 590_000.0, ["enrich-1"], 1))
    judgement = judge.judge_checkpoint(waits((("hourly", 2), aligning)))
    assert judgement.channel is not None
    assert (judgement.channel.sender, judgement.channel.receiver) == ("enrich-1", "hourly-2")
    assert "the barrier that enrich-1 sent had not reached hourly-2" in judgement.headline


def test_an_alignment_that_waits_for_no_sender_any_more_is_told_without_one() -> None:
    done = running(rates=IDLE, aligning=Aligning(T0, 590_000.0, [], 0))
    judgement = judge.judge_checkpoint(waits(*SINKS, (("hourly", 2), done)))
    assert "hourly-2: aligning for 9 min 50 s, busy 3 %." in judgement.because


def test_two_culprits_of_one_wait_are_both_named() -> None:
    judgement = judge.judge_checkpoint(
        waits(
            *SINKS,
            (("hourly", 1), running(stall=Stall(T0, 590_000.0, STACK))),
            (("enrich", 0), running(rates=IDLE, silent_ms=30_000.0)),
        )
    )
    assert judgement.culprits == ("hourly-1", "enrich-0")
    assert any(
        line.startswith("Also: slot 0")
        and line.endswith("enrich-0 ran, was frozen: it had reported nothing for 30 s.")
        for line in judgement.because
    )


def test_a_silent_slot_is_named_once_with_where_it_is() -> None:
    silent = running(rates=IDLE, silent_ms=12_000.0)
    judgement = judge.judge_checkpoint(
        waits(*SINKS, (("source", 1), silent), (("enrich", 1), silent))
    )
    assert "slot 1 (host node-1, process 4701), where " in judgement.headline
    assert not any(line.startswith("Also: ") for line in judgement.because)


def test_without_evidence_an_expired_checkpoint_says_how_many_are_missing() -> None:
    judgement = judge.judge_checkpoint(Facts(times=expired()))
    assert judgement.headline == (
        "Timed out after 10 min 00 s: 4 operator subtasks of 12 never acknowledged."
    )
    assert judgement.because == ("What those subtasks were doing at that time was not kept.",)


# Under way ----------------------------------------------------------------------------------------


def test_a_checkpoint_under_way_that_is_late_says_what_it_waits_for() -> None:
    pending = times(status=CheckpointStatus.PENDING, now_ms=T0 + 12_400, acknowledged_count=8)
    judgement = judge.judge_checkpoint(
        waits(*SINKS, (("hourly", 1), running(rates=busy(0.99))), times=pending)
    )
    assert judgement.tone == "warn"
    assert judgement.headline == (
        "Under way for 12 s, usually 300 ms, because hourly-1 is slow, busy 99 % of the time."
    )
    assert not any("300 ms" in line for line in judgement.because)  # Once is enough.


def test_a_checkpoint_under_way_that_is_not_late_is_calm() -> None:
    pending = times(status=CheckpointStatus.PENDING, now_ms=T0 + 400, acknowledged_count=8)
    judgement = judge.judge_checkpoint(
        waits(*SINKS, (("hourly", 1), running(rates=busy(0.99))), times=pending)
    )
    assert judgement.tone == "busy"
    assert judgement.headline == (
        "Under way: 8 of 12 operator subtasks have acknowledged; waiting for hourly-1."
    )
    assert judgement.advice == ()


@pytest.mark.parametrize(("elapsed_ms", "tone"), [(1_900, "busy"), (2_100, "warn")])
def test_one_that_is_usually_quick_is_late_after_two_seconds_at_least(
    elapsed_ms: int, tone: str
) -> None:
    pending = times(
        status=CheckpointStatus.PENDING,
        now_ms=T0 + elapsed_ms,
        typical_ms=10.0,
        acknowledged_count=8,
    )
    waiting = waits(*SINKS, (("hourly", 1), running(rates=busy(0.99))), times=pending)
    assert judge.judge_checkpoint(waiting).tone == tone


def test_a_manifest_that_takes_long_is_said() -> None:
    late = times(status=CheckpointStatus.FINALIZING, now_ms=T0 + 60_000, cause="no answer")
    judgement = judge.judge_checkpoint(Facts(times=late))
    assert judgement.tone == "warn"
    assert judgement.headline.startswith(
        "All subtasks have acknowledged; the manifest is being written"
    )


# Failed -------------------------------------------------------------------------------------------

NO_SPACE = """hourly-1: Traceback (most recent call last):
  File "/srv/weir/storage/writer.py", line 90, in write
    file.write(data)
OSError: [Errno 28] No space left on device
"""


def aborted(reason: FailureReason, **given: Any) -> Verdict:
    row = expired(reason=reason, settled_at_ms=T0 + 800, **given)
    slots = {1: Slot("node-1", 4_701)}
    return judge.judge_checkpoint(Facts(times=row, operators=LINE.operators, slots=slots))


def test_a_snapshot_that_could_not_be_written_names_subtask_and_error() -> None:
    judgement = aborted(FailureReason.CHECKPOINT_ASYNC_EXCEPTION, cause=NO_SPACE)
    assert judgement.headline == (
        "The state could not be written: hourly-1: OSError: [Errno 28] No space left on device."
    )
    assert judgement.culprits == ("hourly-1",)
    assert judgement.stack.startswith("hourly-1: Traceback")
    assert judgement.advice[0] == "Free space where slot 1 (host node-1, process 4701) writes."


def test_a_full_storage_is_said_when_the_manifest_met_it() -> None:
    cause = "OSError: [Errno 28] No space left on device"
    judgement = aborted(FailureReason.FINALIZE_CHECKPOINT_FAILURE, cause=cause)
    assert judgement.advice[0] == "Free space in the checkpoint storage."


def test_a_failed_attempt_names_the_subtask_that_failed() -> None:
    cause = "hourly-1 failed\nTraceback (most recent call last):\n  File x\nValueError: bad row"
    judgement = aborted(FailureReason.JOB_FAILOVER, attempt_cause=cause)
    assert judgement.headline == (
        "The job failed while the checkpoint was under way: hourly-1: ValueError: bad row."
    )
    assert "hourly-1 (Hourly step) ran in slot 1 (host node-1, process 4701)." in judgement.because


def test_a_lost_slot_names_host_and_subtasks() -> None:
    judgement = aborted(FailureReason.JOB_FAILOVER, attempt_cause="slot 1 on node-1 was lost")
    assert "slot 1 on node-1 was lost" in judgement.headline
    assert judgement.culprits == ("source-1", "enrich-1", "hourly-1", "sink-1")
    assert any("process 4701" in line for line in judgement.because)


@pytest.mark.parametrize(
    ("ended", "advice"),
    [
        ("killed by signal 9", "memory ran out"),
        (f"killed by signal 9, {KILLED_FOR_MEMORY}", "Give the container of the slots more memory"),
        ("killed by signal 11", "a crash in native code"),
        # Weir itself ends the children of a template that is gone.
        (
            "killed by signal 9\nthe template process of this slot died with exit code -11",
            "a crash in native code",
        ),
        ("killed by signal 9\nthe template process of this slot died with exit code 1", "Look at"),
        ("exit 1\nTraceback (most recent call last):\nValueError: of a log", "Look at"),
    ],
)
def test_a_killed_worker_process_names_its_slot_and_what_such_a_kill_means(
    ended: str, advice: str
) -> None:
    cause = f"the worker process of slot 1 (pid 4701) ended: {ended}"
    judgement = aborted(FailureReason.JOB_FAILOVER, attempt_cause=cause)
    (first, *_) = cause.splitlines()
    assert judgement.headline == f"The job failed while the checkpoint was under way: {first}."
    assert judgement.culprits == ("source-1", "enrich-1", "hourly-1", "sink-1")
    assert advice in judgement.advice[0]


def test_a_worker_above_its_limit_of_memory_is_told_in_its_own_words() -> None:
    over = "the worker process of slot 1 holds 450.0 MB of memory, more than its limit of 400.0 MB"
    cause = f"hourly-1 failed\n{over} (x). The largest states in memory: 'seen' of hourly-1."
    judgement = aborted(FailureReason.JOB_FAILOVER, attempt_cause=cause)
    assert f"hourly-1: {over}" in judgement.headline
    assert judgement.culprits == ("hourly-1",)


def test_a_victim_of_another_checkpoint_s_failure_leads_to_that_one() -> None:
    cause = "checkpoint 25 failed: checkpoint_expired; that is one more than tolerated"
    judgement = aborted(FailureReason.JOB_FAILOVER, attempt_cause=cause)
    assert judgement.advice[0] == "See the verdict on checkpoint 25 for why it failed."


@pytest.mark.parametrize("reason", FailureReason)
def test_every_reason_has_words_and_advice(reason: FailureReason) -> None:
    judgement = aborted(reason, cause="the disk said no")
    assert judgement.tone == "bad"
    assert judgement.headline[0].isupper()
    assert judgement.headline.endswith(".")
    assert reason.value not in judgement.headline
    assert judgement.advice


# All is well --------------------------------------------------------------------------------------


def test_a_quick_checkpoint_is_well_with_its_longest_part_and_share() -> None:
    judgement = verdict(Case(async_ms=dict.fromkeys(LINE.subtasks(), 180.0)))
    assert judgement.tone == "good"
    assert judgement.headline == (
        "All is well: the checkpoint took 192 ms, 2 % of its interval of 10 s; 94 % of its time "
        "went into writing state."
    )
    assert (judgement.advice, judgement.culprits) == ((), ())
    assert "slow" not in said(judgement)


@pytest.mark.parametrize(("interval_ms", "tone"), [(100, "warn"), (250, "good")])
def test_a_checkpoint_of_less_than_a_second_is_slow_where_it_takes_longer_than_its_interval(
    interval_ms: int, tone: str
) -> None:
    case = Case(async_ms=dict.fromkeys(LINE.subtasks(), 180.0))
    took = times(duration_ms=200, settled_at_ms=T0 + 200, interval_ms=interval_ms)
    assert judge.judge_checkpoint(case.run(times=took)).tone == tone


def test_a_quick_checkpoint_still_names_the_channel_that_it_waited_for() -> None:
    judgement = verdict(Case(channel_ms={LATE: 300}, rates=EVERYBODY_IDLE))
    assert judgement.tone == "good"
    assert judgement.headline.endswith(
        "went into waiting for barriers, most of all for the one from enrich-1 to hourly-2 (300 ms "
        "after the first one)."
    )
    assert judgement.culprits == ("enrich-1", "hourly-2")


def test_without_acknowledgements_the_row_itself_is_told() -> None:
    kept = times(duration_ms=900, alignment_ms=700.0, async_ms=20.0)
    judgement = judge.judge_checkpoint(Facts(times=kept))
    assert (
        judgement.headline
        == "The checkpoint took 900 ms; the longest part was alignment, with 700 ms."
    )
    assert "not kept any more" in judgement.because[0]
    adopted = judge.judge_checkpoint(Facts(times=times(duration_ms=900)))
    assert "without this control plane" in adopted.headline


# Anything that is injected ------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Chains of any width; each but the first gets its records from one or two before it."""
    count = draw(st.integers(2, 5))
    widths = [draw(st.integers(1, 4)) for _ in range(count)]
    edges = []
    for at in range(1, count):
        sources = draw(st.lists(st.integers(0, at - 1), min_size=1, max_size=2, unique=True))
        for source in sources:
            same = widths[source] == widths[at]
            kinds = ("hash", "rebalance", "forward") if same else ("hash", "rebalance")
            edges.append((f"op-{source}", f"op-{at}", draw(st.sampled_from(kinds))))
    return Graph({f"op-{at}": width for at, width in enumerate(widths)}, edges)


def channels_of(graph: Graph) -> list[Channel]:
    return [
        (sender, receiver)
        for receiver in graph.subtasks()
        for senders in graph.channels(receiver)
        for sender in senders
    ]


# The share of a delay up to which other channels may be late as well, and the right one is named.
NOISE_MAX = 0.25
# A share at which another channel may be later than the delayed one: here the verdict must err.
NOISE_TOO_LOUD = 2.0


def noise_of(graph: Graph, seed: Random, loudest_ms: float) -> dict[Any, float]:
    return {channel: seed.uniform(0.0, loudest_ms) for channel in channels_of(graph)}


@st.composite
def delays(draw: st.DrawFn, loudest: float) -> tuple[Case, Channel, float, float]:
    """A checkpoint with a delay on one channel and noise on all: the channel, delay and share."""
    graph = draw(graphs())
    late = draw(st.sampled_from(channels_of(graph)))
    delay = draw(st.floats(100.0, 60_000.0))
    share = draw(st.floats(0.0, loudest))
    seed = draw(st.randoms(use_true_random=False))
    rates = {key: busy(seed.uniform(0.0, 0.4)) for key in graph.subtasks()}
    case = Case(
        graph,
        channel_ms={late: delay},
        noise=noise_of(graph, seed, delay * share),
        rates=rates if draw(st.booleans()) else {},
        async_ms={key: seed.uniform(0.0, delay / 50) for key in graph.subtasks()},
    )
    return case, late, delay, share


@st.composite
def slow_subtasks(draw: st.DrawFn, loudest: float) -> tuple[Case, Key]:
    """A checkpoint whose records wait in front of one busy subtask, with noise on all channels."""
    graph = draw(graphs())
    slow = draw(st.sampled_from([key for key in graph.subtasks() if graph.channels(key)]))
    delay = draw(st.floats(1_500.0, 60_000.0))
    seed = draw(st.randoms(use_true_random=False))
    noise = noise_of(graph, seed, delay * draw(st.floats(0.0, loudest)))
    rates = {key: busy(seed.uniform(0.0, 0.4)) for key in graph.subtasks()} | {slow: busy(0.9)}
    return Case(graph, front_ms={slow: delay}, noise=noise, rates=rates), slow


def names_channel(case: Case, late: Channel) -> bool:
    channel = verdict(case).channel
    names = (name_of(late[0]), name_of(late[1]))
    return channel is not None and (channel.sender, channel.receiver) == names


@given(delays(NOISE_MAX))
@settings(max_examples=300)
def test_a_delay_on_a_channel_is_named_every_time(drawn: tuple[Any, ...]) -> None:
    """For any graph and noise: that channel, and that duration as far as the noise leaves it."""
    case, late, delay, share = drawn
    assert names_channel(case, late)
    judgement = verdict(case)
    assert f"{name_of(late[0])}" in said(judgement)
    # The noise of each channel on the way, and its own, may be in the duration.
    assert _told_ms(judgement) == pytest.approx(delay, rel=0.05 + 5 * share)


@given(slow_subtasks(NOISE_MAX))
@settings(max_examples=200)
def test_a_slow_subtask_is_named_every_time(drawn: tuple[Case, Key]) -> None:
    """Records wait in front of one subtask, which is busy: it is named, not those behind it."""
    case, slow = drawn
    judgement = verdict(case)
    assert judgement.culprits == (name_of(slow),)
    assert judgement.headline.startswith(f"{name_of(slow)} was slow, busy 90 % of the time")


def test_noise_that_is_louder_than_the_delay_makes_both_properties_fail() -> None:
    """Without this the two above could hold for any verdict at all."""
    thorough = settings(max_examples=1_000, phases=[Phase.generate], database=None)
    case, late, *_ = find(
        delays(NOISE_TOO_LOUD), lambda drawn: not names_channel(*drawn[:2]), settings=thorough
    )
    assert max(case.noise.values()) > NOISE_MAX * case.channel_ms[late]
    case, slow = find(
        slow_subtasks(NOISE_TOO_LOUD),
        lambda drawn: verdict(drawn[0]).culprits != (name_of(drawn[1]),),
        settings=thorough,
    )
    assert max(case.noise.values()) > NOISE_MAX * case.front_ms[slow]


def _told_ms(judgement: Verdict) -> float:
    """The first duration of the channel's text, in milliseconds."""
    assert judgement.channel is not None
    words = judgement.channel.text.removeprefix("under way for ").split()
    if words[1] == "min":
        return float(words[0]) * 60_000 + float(words[2]) * 1_000
    return float(words[0]) * {"ms": 1.0, "s": 1_000.0}[words[1].rstrip(",")]


def test_forty_thousand_channels_are_judged_at_once() -> None:
    """200 × 200, all to all: the walk looks at the gates on its way, not at all channels."""
    wide = Graph({"source": 200, "sink": 200}, [("source", "sink", "hash")])
    late: Channel = (("source", 77), ("sink", 123))
    facts = Case(wide, channel_ms={late: 5_000}).run()
    judgement = judge.judge_checkpoint(facts)
    assert judgement.channel is not None
    assert (judgement.channel.sender, judgement.channel.receiver) == ("source-77", "sink-123")
    assert duration(5_000) in judgement.headline


# Stacks -------------------------------------------------------------------------------------------


def test_the_users_innermost_frame_is_where_a_call_stands() -> None:
    frame = where(STACK)
    assert frame is not None
    assert frame.text == "enrich (orders.py:41)"
    runtime = '  File "/x/weir/runtime/loop.py", line 3, in run\n    step()\n'
    inner = where(runtime)
    assert inner is not None
    assert inner.text == "run (loop.py:3)"
    assert where("no frames") is None


def test_the_error_of_an_operator_is_the_line_that_names_it() -> None:
    told = "'Map' (job.py:9) made the record 1, which does not fit its declared type"
    assert error(f"{told}\nTraceback (most recent call last):\nweir.errors.SchemaError") == told


def test_the_error_of_a_traceback_is_its_last_word() -> None:
    assert error(NO_SPACE.partition(": ")[2]) == "OSError: [Errno 28] No space left on device"
    assert error("the disk said no\nand more") == "the disk said no"
    assert error("") == ""


def test_nothing_is_known_of_nothing() -> None:
    assert (
        judge.judge_checkpoint(Facts(times=times(status=CheckpointStatus.PENDING))).tone == "warn"
    )
    assert Evidence().stalled == {}
