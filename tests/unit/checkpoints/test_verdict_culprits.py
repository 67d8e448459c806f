"""Culprits by their right names: the operator in a chain, the sink, the driver, the host."""

import signal
from dataclasses import replace
from typing import Any

import pytest

from checkpoints.verdict import judge
from checkpoints.verdict.facts import (
    Aligning,
    Call,
    CpuWait,
    DriverSeen,
    Facts,
    Operator,
    Seen,
    Slot,
    Stall,
)
from checkpoints.verdict.judge import Verdict
from checkpoints.verdict.result import Cause
from checkpoints.verdict.stacks import Waiting, waits_for
from checkpoints.verdict.starvation import DRIVER_LACK, PRESSURE_SHARE
from tests.unit.checkpoints.verdict_cases import (
    IDLE,
    LINE,
    T0,
    Case,
    Channel,
    busy,
    expired,
    seen,
    times,
)
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, SubtaskStatus
from weir.protocol.messages import IT_KEPT_THE_LOCK, IT_WAITS, IT_WAS_FROZEN

ALL_IDLE = dict.fromkeys(LINE.subtasks(), IDLE)
LATE: Channel = (("enrich", 1), ("hourly", 2))


def verdict(case: Case, **given: Any) -> Verdict:
    return judge.judge_checkpoint(case.run(**given))


def said(judgement: Verdict) -> str:
    return " ".join([judgement.headline, *judgement.because, *judgement.advice])


# The operator in a chain --------------------------------------------------------------------------


def worked_in(*calls: Call) -> Verdict:
    """``hourly-2``, which has a parser chained behind it, was slow; samples met it here."""
    rates = ALL_IDLE | {("hourly", 2): replace(busy(0.97), calls=calls)}
    chained = [*LINE.operators, Operator("parse", "Parse", "hourly", 3)]
    return verdict(Case(front_ms={("hourly", 2): 5_000}, rates=rates), operators=chained)


def test_a_busy_chain_is_told_with_the_operator_and_the_line_that_take_its_time() -> None:
    judgement = worked_in(
        Call("parse", "match", "/srv/jobs/orders.py", 88, 0.6),
        Call("parse", "split", "/srv/jobs/orders.py", 91, 0.2),
        Call("hourly", "", "", 0, 0.1),
    )
    assert judgement.headline == (
        "hourly-2 was slow, busy 97 % of the time, most of it in match (orders.py:88) of Parse; "
        "its barrier reached sink-2 5.00 s after the first one."
    )
    assert (
        "Samples met hourly-2 at work in match (orders.py:88) of Parse 60 %, split (orders.py:91) "
        "of Parse 20 %, Hourly step 10 %." in judgement.because
    )


def test_an_operator_without_a_line_of_the_users_is_named_alone() -> None:
    judgement = worked_in(Call("parse", "", "", 0, 0.9))
    assert judgement.headline.startswith(
        "hourly-2 was slow, busy 97 % of the time, most of it in Parse; "
    )


def test_work_that_is_spread_over_a_chain_is_no_operators() -> None:
    judgement = worked_in(Call("parse", "f", "a.py", 1, 0.4), Call("hourly", "g", "a.py", 2, 0.4))
    assert judgement.headline.startswith("hourly-2 was slow, busy 97 % of the time; its barrier")
    assert any(line.startswith("Samples met hourly-2 at work in ") for line in judgement.because)


def test_a_starved_slot_is_told_with_the_work_that_it_has() -> None:
    """Whether a processor or less work is needed depends on both."""
    calls = (Call("parse", "match", "/srv/jobs/orders.py", 88, 0.9),)
    rates = ALL_IDLE | {("hourly", 2): replace(busy(0.97), calls=calls)}
    chained = [*LINE.operators, Operator("parse", "Parse", "hourly", 3)]
    case = Case(front_ms={("sink", 2): 5_000}, rates=rates, cpu_wait={2: 0.7})
    judgement = verdict(case, operators=chained)
    assert judgement.headline.startswith(
        "Slot 2 on host node-2, where sink-2 ran, waited 70 % of the time for a processor; with "
        "one it worked most in match (orders.py:88) of Parse; the barrier "
    )
    assert any("Samples met hourly-2 at work in" in line for line in judgement.because)


# A call that does not return ----------------------------------------------------------------------

OWN = '  File "/srv/orders.py", line 41, in enrich\n'
SOCKET = '  File "/usr/lib/python3.11/socket.py", line 706, in readinto\n    return self._sock.re\n'
SINK = (
    '  File "/opt/weir/operators/sinks/part_files.py", line 88, in rename_once\n    os.link(a, b)\n'
)
STORED = '  File "/opt/weir/storage/local.py", line 12, in write\n    os.write(fd, data)\n'
WAITS = f"  {IT_WAITS}\n"


@pytest.mark.parametrize(
    ("stack", "waiting"),
    [
        (f"{OWN}    get(url)\n{SOCKET}{WAITS}", Waiting.SOCKET),
        (f"{OWN}    get(url)\n{SOCKET}", Waiting.SOCKET),
        (f"{OWN}    peer.recv(10)\n{WAITS}", Waiting.SOCKET),
        (f"{OWN}    lock.acquire()\n{WAITS}", Waiting.LOCK),
        (f"{OWN}    time.sleep(4)\n{WAITS}", Waiting.SLEEP),
        (f"{OWN}    os.fsync(file)\n{WAITS}", Waiting.NATIVE),
        (f"{OWN}    os.fsync(file)\n    ^^^^^^^^\n{WAITS}", Waiting.NATIVE),
        (f"{SINK}{WAITS}", Waiting.SINK),
        (f"{STORED}{WAITS}", Waiting.STORAGE),
        (f"{SINK}{OWN}    time.sleep(4)\n{WAITS}", Waiting.SLEEP),
        (f'{OWN}    text = ",".join(words)\n', Waiting.NOTHING),
        (f"{OWN}    peer.recv(10)\n", Waiting.NOTHING),
        ("", Waiting.NOTHING),
    ],
)
def test_a_stack_tells_what_it_waits_for(stack: str, waiting: Waiting) -> None:
    assert waits_for(stack) is waiting


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (f"    peer.recv(10)\n{WAITS}", "It waits for another system: look at that one."),
        (f"    os.fsync(file)\n{WAITS}", "It waits in a call into C, such as for a file"),
        ("    x = x * x\n", "It computes: make the work of one call smaller"),
    ],
)
def test_the_advice_on_a_stuck_call_goes_by_what_it_waits_for(line: str, advice: str) -> None:
    stalls = {("hourly", 1): Stall(T0 + 100, 4_800.0, OWN + line)}
    judgement = verdict(
        Case(front_ms={("hourly", 1): 5_000}), evidence=seen(LINE, ALL_IDLE, stalls=stalls)
    )
    assert judgement.headline == "hourly-1 was stuck in enrich (orders.py:41) for 4.80 s."
    assert advice in judgement.advice[0]
    assert judgement.cause is Cause.STUCK


def test_a_process_that_stood_still_is_frozen() -> None:
    stalls = {("hourly", 1): Stall(T0 + 100, 3_900.0, f"  {IT_WAS_FROZEN}\n")}
    evidence = seen(LINE, ALL_IDLE, stalls=stalls)
    judgement = verdict(Case(front_ms={("hourly", 1): 4_000}), evidence=evidence)
    assert judgement.headline == (
        "Slot 1 (host node-1, process 4701), where hourly-1 ran, was frozen for 3.90 s."
    )
    assert judgement.cause is Cause.FROZEN
    assert "Find out what stopped the process of slot 1 (host node-1" in judgement.advice[0]
    assert judgement.tone == "warn"


def test_a_call_that_kept_the_interpreter_lock_is_told_as_such() -> None:
    stack = f"{OWN}    re.match(pattern, text)\n  {IT_KEPT_THE_LOCK}\n"
    stalls = {("hourly", 1): Stall(T0 + 100, 3_900.0, stack)}
    evidence = seen(LINE, ALL_IDLE, stalls=stalls)
    judgement = verdict(Case(front_ms={("hourly", 1): 4_000}), evidence=evidence)
    assert judgement.headline == "hourly-1 was stuck in a call into C for 3.90 s."
    assert "Right after that call the loop was in enrich (orders.py:41)." in judgement.because
    assert "kept Python's interpreter lock" in judgement.advice[0]


# A sink -------------------------------------------------------------------------------------------

SINKS = [
    *LINE.operators,
    Operator("out", "Orders", "sink", 3, is_sink=True, files="/data/orders"),
]


def written_in(cpu_wait: float = 0.0, **writing_ms: float) -> Verdict:
    """Slot 1 wrote for 8 seconds, its ``sink-1`` so long for each of its operators."""
    slow = {(uid, 1): 8_000.0 for uid in LINE.chains}
    parts = {("sink", 0): {"sink": 0.1, "out": 4.0}, ("sink", 1): {"sink": 0.1} | writing_ms}
    written = dict.fromkeys(LINE.subtasks(), 300)
    case = Case(async_ms=slow, written=written, rates=ALL_IDLE, writing=parts)
    waits = {1: CpuWait(cpu_wait, 0.03, 0.9)}
    return verdict(case, operators=SINKS, evidence=seen(LINE, ALL_IDLE, cpu_waits=waits))


@pytest.mark.parametrize(("cpu_wait", "is_named"), [(0.15, False), (0.4, True)])
def test_a_loop_that_waited_a_little_did_not_make_the_writing_slow(
    cpu_wait: float, is_named: bool
) -> None:
    """The snapshot thread writes, and waits for the storage most of the time."""
    judgement = written_in(cpu_wait, out=7_900.0)
    assert judgement.headline.startswith("Slot 1 on host node-1, where sink-1 ran") is is_named
    assert "storage of the sink Orders was slow" in judgement.headline


def test_a_sinks_storage_is_called_that() -> None:
    judgement = written_in(out=7_900.0)
    assert judgement.headline == (
        "The storage of the sink Orders was slow: out-1 took 7.90 s to write and sync its output "
        "in /data/orders (async part)."
    )
    assert judgement.culprits == ("sink-1",)
    assert judgement.cause is Cause.SINK
    assert "look at slot 1 (host node-1, process 4701) alone" in said(judgement)
    assert not any("checkpoint storage" in line for line in judgement.advice)


def test_the_checkpoint_storage_stays_accused_where_the_sink_was_quick() -> None:
    judgement = written_in(out=3.0)
    assert "storage of the sink" not in judgement.headline
    assert "storage was slow" in judgement.headline
    judgement = written_in()  # As a worker of an earlier version acknowledges.
    assert "storage of the sink" not in judgement.headline


def test_a_loop_that_stands_in_a_sinks_files_waits_for_the_sinks_storage() -> None:
    stalls = {("sink", 1): Stall(T0 + 100, 4_800.0, f"{SINK}{WAITS}")}
    judgement = verdict(
        Case(front_ms={("sink", 1): 5_000}),
        evidence=seen(LINE, ALL_IDLE, stalls=stalls),
        operators=SINKS,
    )
    assert judgement.headline == ("sink-1 was stuck in the storage of the sink Orders for 4.80 s.")
    assert "It waits for the files of the sink" in judgement.advice[0]
    assert judgement.cause is Cause.SINK


# The driver ---------------------------------------------------------------------------------------

STARVED = DriverSeen(2_000.0, 100.0, 300.0)
ALL_LATE = {("source", index): 5_000.0 + 100 * index for index in range(3)}


def test_sources_that_are_all_late_alike_are_the_driver() -> None:
    judgement = verdict(Case(front_ms=ALL_LATE, rates=ALL_IDLE))
    assert judgement.headline == (
        "The driver sent the trigger late: all 3 source subtasks took it up only after 5.20 s."
    )
    assert judgement.cause is Cause.DRIVER
    assert "slot" not in judgement.advice[0].split("clocks")[0]


def test_one_source_that_is_late_is_not_the_driver() -> None:
    judgement = verdict(Case(front_ms={("source", 2): 5_000.0}, rates=ALL_IDLE))
    assert "the source source-2 took up the trigger only after" in judgement.headline.lower()
    assert "The driver sent" not in judgement.headline


def test_sources_that_are_all_late_and_busy_are_busy() -> None:
    rates = ALL_IDLE | {key: busy(0.98) for key in ALL_LATE}
    judgement = verdict(Case(front_ms=ALL_LATE, rates=rates))
    assert judgement.headline.startswith("source-2 was slow, busy 98 %")


@pytest.mark.parametrize(
    ("driver", "is_named"),
    [
        (STARVED, True),
        (DriverSeen(2_000.0, 1_000.0, 1_000.0 * DRIVER_LACK), False),
        (DriverSeen(2_000.0, 1.0, 9.0), False),
        (None, False),
    ],
)
@pytest.mark.parametrize("part", ["trigger", "acknowledgements", "manifest"])
def test_a_driver_without_a_processor_is_told_with_its_wait(
    driver: DriverSeen | None, is_named: bool, part: str
) -> None:
    facts = Case(front_ms=ALL_LATE if part == "trigger" else {}, rates=ALL_IDLE).run()
    if part != "trigger":
        facts = replace(facts, times=times(duration_ms=9_010, settled_at_ms=T0 + 9_010))
    if part == "acknowledgements":
        acks = {k: replace(a, acknowledged_at_ms=T0 + 9_000) for k, a in facts.acks.items()}
        facts = replace(facts, acks=acks)
    judgement = judge.judge_checkpoint(
        replace(facts, evidence=replace(facts.evidence, driver=driver))
    )
    waited = "The driver waited for a processor for 75 % of the time in which it had work; "
    assert judgement.headline.startswith(waited) is is_named
    assert ("what else runs on the driver's host" in said(judgement)) is is_named
    assert judgement.cause is (Cause.STARVED if is_named else Cause.DRIVER)


def test_a_driver_that_stood_still_is_frozen() -> None:
    facts = Case(rates=ALL_IDLE).run()
    acks = {k: replace(a, acknowledged_at_ms=T0 + 4_000) for k, a in facts.acks.items()}
    stood = DriverSeen(4_500.0, 3.0, 0.0, stood_ms=3_900.0)
    facts = replace(
        facts,
        acks=acks,
        times=times(duration_ms=4_010, settled_at_ms=T0 + 4_010),
        evidence=replace(facts.evidence, driver=stood),
    )
    judgement = judge.judge_checkpoint(facts)
    assert judgement.headline.startswith("The driver was frozen for 3.90 s; the acknowledgements")
    assert (judgement.cause, judgement.culprits) == (Cause.FROZEN, ("driver",))


def test_a_manifest_whose_driver_was_lost_does_not_blame_the_storage() -> None:
    lost = times(
        status=CheckpointStatus.FINALIZING,
        duration_ms=None,
        lost_driver="the driver's process 4711 ended, killed by SIGKILL",
    )
    judgement = judge.judge_checkpoint(Facts(times=lost))
    assert judgement.headline == (
        "All subtasks have acknowledged; the driver was lost while it wrote the manifest: the "
        "driver's process 4711 ended, killed by SIGKILL."
    )
    assert "storage" not in said(judgement)
    waits = replace(lost, cause="The checkpoint cannot be settled yet: /s is not mounted.")
    judgement = judge.judge_checkpoint(Facts(times=waits))
    assert (judgement.tone, judgement.cause) == ("bad", Cause.STORAGE)
    assert judgement.headline == "The checkpoint cannot be settled yet: /s is not mounted."
    assert "killed by SIGKILL" in said(judgement)
    assert "The next driver is launched once the storage has told" in said(judgement)
    took = replace(
        Case(rates=ALL_IDLE).run(),
        times=replace(lost, status=CheckpointStatus.COMPLETED, duration_ms=9_010),
    )
    judgement = judge.judge_checkpoint(took)
    assert "in which the driver was lost" in judgement.headline
    assert "storage" not in said(judgement)


def failed(attempt_cause: str, **given: Any) -> Verdict:
    """A checkpoint that failed with its attempt."""
    row = expired(
        reason=FailureReason.JOB_FAILOVER, settled_at_ms=T0 + 800, attempt_cause=attempt_cause
    )
    slots = {1: Slot("node-1", 4_701)}
    return judge.judge_checkpoint(Facts(times=row, operators=LINE.operators, slots=slots, **given))


@pytest.mark.parametrize(
    ("cause", "advice", "kind"),
    [
        (
            "driver 2 was silent for 31.2 s: its process is frozen, or cannot reach the control "
            "plane",
            "Look at the driver's process: whether it is stopped (state T in ps)",
            Cause.FROZEN,
        ),
        (
            f"the driver's process 4711 ended, killed by {signal.Signals.SIGKILL.name}",
            "memory ran out",
            Cause.DRIVER,
        ),
        (
            "the driver's process 4711 ended with exit code 1\nValueError: no",
            "Read the last lines of the driver's log",
            Cause.DRIVER,
        ),
        (
            "the worker process of slot 1 made no progress for 3000 ms and sent no heartbeat; it "
            "is frozen: stopped, swapping, or in a call into C that keeps the interpreter lock, "
            "and is replaced",
            "Look at the process of slot 1 (host node-1, process 4701): whether it is stopped",
            Cause.FROZEN,
        ),
        (
            "slot 1 was silent for 3000 ms: its process is frozen or cut off, and is replaced",
            "Look at the process of slot 1 (host node-1, process 4701): whether it is stopped",
            Cause.FROZEN,
        ),
    ],
)
def test_a_lost_process_is_told_by_how_it_was_lost(cause: str, advice: str, kind: Cause) -> None:
    judgement = failed(cause)
    assert advice in said(judgement)
    assert judgement.cause is kind
    assert cause.partition("\n")[0] in judgement.headline
    assert "storage" not in said(judgement)


def test_a_manifest_that_failed_with_its_driver_does_not_blame_the_storage() -> None:
    row = expired(
        reason=FailureReason.FINALIZE_CHECKPOINT_FAILURE,
        settled_at_ms=T0 + 800,
        cause="its driver was lost before it had reported the manifest as written",
        lost_driver="the driver's process 4711 ended, killed by SIGKILL",
    )
    judgement = judge.judge_checkpoint(Facts(times=row, operators=LINE.operators))
    assert judgement.headline == (
        "The driver was lost before it had reported the manifest as written: the driver's process "
        "4711 ended, killed by SIGKILL."
    )
    assert (judgement.cause, judgement.culprits) == (Cause.DRIVER, ("driver",))
    assert "storage" not in said(judgement)
    of_attempt = replace(
        row,
        cause="attempt 3 ended before the command to write its manifest came",
        lost_driver="",
        attempt_cause="the worker process of slot 1 (pid 7) ended: killed by signal 9",
    )
    judgement = judge.judge_checkpoint(Facts(times=of_attempt, operators=LINE.operators))
    assert "under way: the worker process of slot 1 (pid 7) ended" in judgement.headline
    assert "storage" not in said(judgement)
    stored = replace(row, cause="OSError: [Errno 5] Input/output error")
    judgement = judge.judge_checkpoint(Facts(times=stored, operators=LINE.operators))
    assert "look at the checkpoint storage" in said(judgement)


HUNG = "the worker process of slot 1 made no progress for 3000 ms; it hangs in user code"


def test_a_process_that_was_replaced_in_a_call_is_told_with_that_call() -> None:
    stall = Stall(T0, 2_900.0, f"{OWN}    peer.recv(10)\n{WAITS}")
    judgement = failed(HUNG, evidence=seen(LINE, {}, stalls={("hourly", 1): stall}))
    assert judgement.headline.endswith(
        "it hangs in user code: hourly-1 was stuck in enrich (orders.py:41) for 2.90 s."
    )
    assert judgement.culprits[0] == "hourly-1"
    assert "It waits for another system" in judgement.advice[0]
    assert judgement.stack == stall.stack


def test_a_call_without_a_stack_keeps_the_interpreter_lock() -> None:
    judgement = failed(HUNG)
    assert "it is probably in C and keeps Python's interpreter lock" in said(judgement)


def test_a_driver_that_is_silent_is_told_instead_of_its_subtasks() -> None:
    late = times(
        status=CheckpointStatus.PENDING, duration_ms=None, now_ms=T0 + 9_000, driver_silent_ms=8_000
    )
    evidence = replace(seen(LINE, ALL_IDLE), missing=[("source", 0)], missing_count=1)
    facts = Facts(times=late, operators=LINE.operators, evidence=evidence)
    judgement = judge.judge_checkpoint(facts)
    assert "because the driver is frozen or cut off: it has given no sign" in judgement.headline
    assert judgement.culprits == ("driver",)
    writes = replace(late, status=CheckpointStatus.FINALIZING)
    assert judge.judge_checkpoint(Facts(times=writes)).headline == judgement.headline
    heard = judge.judge_checkpoint(replace(facts, times=replace(late, driver_silent_ms=None)))
    assert "the driver" not in heard.headline


# Hosts --------------------------------------------------------------------------------------------


def on_hosts(*hosts: str, pressure: float = 0.0, wait: float = 0.0, **given: Any) -> Verdict:
    """The channel from slot 1 to slot 2 was late; all slots had time."""
    waits = {index: CpuWait(wait, 0.03, pressure) for index in range(3)}
    slots = {index: Slot(host, 4_700 + index) for index, host in enumerate(hosts)}
    evidence = seen(LINE, ALL_IDLE, cpu_waits=waits)
    return verdict(Case(channel_ms={LATE: 5_000}), evidence=evidence, slots=slots, **given)


def test_no_network_is_blamed_between_slots_of_one_host() -> None:
    assert "check the network from slot 1" in said(on_hosts("a", "b", "c"))
    judgement = on_hosts("a", "b", "b")
    assert judgement.headline.startswith("The channel enrich-1 → hourly-2 held the barrier")
    assert "Both ends are on host b, so no network is between them" in said(judgement)
    assert "check the network" not in said(judgement)


@pytest.mark.parametrize("sender", [0, 1])
def test_no_network_is_blamed_within_one_slot(sender: int) -> None:
    late: Channel = (("enrich", sender), ("hourly", 1))
    judgement = verdict(Case(channel_ms={late: 5_000}, rates=ALL_IDLE))
    assert ("network from slot 0" in said(judgement)) is (sender == 0)
    assert "network from slot 1" not in said(judgement)


@pytest.mark.parametrize(
    ("pressure", "is_named"), [(PRESSURE_SHARE - 0.01, False), (PRESSURE_SHARE, True)]
)
def test_a_host_short_of_processors_is_named_where_both_ends_had_time(
    pressure: float, is_named: bool
) -> None:
    judgement = on_hosts("a", "b", "b", pressure=pressure)
    named = "Host b, where hourly-2 ran, was short of processors; the barrier of enrich-1 reached"
    assert judgement.headline.startswith(named) is is_named
    assert judgement.cause is (Cause.STARVED if is_named else Cause.CHANNEL)
    assert ("had no processor for 50 %" in said(judgement)) is is_named


@pytest.mark.parametrize(("pressure", "is_starved"), [(0.3, False), (0.9, True)])
def test_a_small_wait_tells_of_a_starved_slot_on_a_host_under_pressure(
    pressure: float, is_starved: bool
) -> None:
    judgement = on_hosts("a", "b", "b", pressure=pressure, wait=0.15)
    starved = "Slot 2 on host b, where hourly-2 ran, waited 15 % of the time for a processor"
    assert judgement.headline.startswith(starved) is is_starved


@pytest.mark.parametrize("pressure", [0.1, 0.8])
def test_a_barrier_under_way_to_a_host_short_of_processors(pressure: float) -> None:
    waits = {2: CpuWait(0.0, 0.03, pressure)}
    aligning = Seen(SubtaskStatus.RUNNING, IDLE, Aligning(T0, 590_000.0, ["enrich-1"], 1))
    case = Case(rates=ALL_IDLE).run()
    evidence = replace(
        case.evidence,
        subtasks={**case.evidence.subtasks, ("hourly", 2): aligning},
        cpu_waits=waits,
        missing=[("hourly", 2)],
        missing_count=1,
    )
    judgement = judge.judge_checkpoint(
        Facts(times=expired(), operators=case.operators, edges=case.edges, evidence=evidence)
    )
    assert "the barrier that enrich-1 sent had not reached hourly-2" in judgement.headline
    assert ("short of processors" in judgement.headline) is (pressure == 0.8)
