"""The driver's line to the control plane, over real sockets, through everything that happens."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.builders import ack, barrier, subtask
from tests.process.managed.control_plane import JOB, TOKEN, StandIn, control_plane
from tests.unit.operators.operator_harness import ManualClock
from tests.waiting import wait_until
from weir.bounds import TEXT_LENGTH_MAX, WORD_LENGTH_MAX
from weir.errors import ConfigError
from weir.ids import AttemptNumber, CheckpointId
from weir.managed import gateway_client as production
from weir.managed.gateway_client import Gateway
from weir.managed.gateway_line import GatewayAddress
from weir.protocol.driver_messages import (
    BATCH_BYTES_MAX,
    BATCH_EVENTS_MAX,
    CancelJob,
    DriverCommand,
    DriverLost,
)
from weir.protocol.events import Notice
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    AlignmentProgress,
    GateAlignment,
    GateProgress,
    OperatorAck,
    SnapshotMetrics,
    SubtaskChanged,
    SubtaskMetrics,
    SubtaskStalled,
    TriggerCheckpoint,
)
from weir.secrets import job_secrets
from weir.secrets.masking import MASK, Masker
from weir.storage.attempt_claims import ManagedClaim, load_managed
from weir.wire import batches

ONE = AttemptNumber(1)


@dataclass
class Heard:
    """The commands and refusals that the gateway passed on."""

    commands: list[DriverCommand] = field(default_factory=list)
    fenced: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)

    def on_command(self, command: DriverCommand) -> None:
        self.commands.append(command)

    def on_fenced(self, reason: str) -> None:
        self.fenced.append(reason)

    def on_refused(self, cause: str) -> None:
        self.refused.append(cause)

    def on_alone(self, cause: str) -> None:
        self.alone.append(cause)

    def wait_for(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds of what was heard; often enough to tell milliseconds."""
        wait_until(holds, lambda: f"what is expected is heard; heard {self}", poll_s=0.001)


@pytest.fixture
def control() -> Iterator[StandIn]:
    with control_plane() as control:
        yield control


@contextmanager
def driver(
    control: StandIn, heard: Heard | None = None, *, flush_s: float = 10.0, **settings: Any
) -> Iterator[Gateway]:
    """A gateway that runs; in the end nothing of it is left."""
    settings = {"heartbeat_s": 0.2, **settings}
    gateway = Gateway(control.address, heard or Heard(), **settings)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.close(flush_s)
        assert not [thread.name for thread in gateway._threads if thread.is_alive()]


def notice(text: str) -> Notice:
    return Notice(1, text)


def metrics(chain: str, records: int, attempt: int = 1) -> SubtaskMetrics:
    return SubtaskMetrics(
        AttemptNumber(attempt), subtask(chain), records, records, 0, 0, 0.0, 0.0, 0.0, None
    )


def texts(control: StandIn) -> list[str]:
    return [event.text for event in control.events_of(Notice)]


def test_events_arrive_in_order_and_what_came_meanwhile_goes_together(control: StandIn) -> None:
    control.accidents.append("slow")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("0"))
        control.wait_for(lambda: control.up_to == 1)  # It is not answered yet.
        for number in range(1, 50):
            gateway.post(notice(str(number)))
        control.wait_for(lambda: control.up_to == 50)
    assert texts(control) == [str(number) for number in range(50)]
    assert [len(batch.events) for batch in control.batches if batch.events] == [1, 49]


def test_no_value_of_a_secret_leaves_the_driver(
    control: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_secrets, "_masker", Masker(["hunter22"]))
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("the password is hunter22"))
        control.wait_for(lambda: control.up_to == 1)
    assert texts(control) == [f"the password is {MASK}"]


def test_a_batch_whose_answer_was_lost_comes_again_with_the_same_numbers(control: StandIn) -> None:
    control.accidents.append("no answer")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("first"))
        control.wait_for(lambda: len(control.batches) >= 1)
        gateway.post(notice("second"))
        control.wait_for(lambda: control.up_to == 2)
    assert texts(control) == ["first", "second"]
    first, again, *_ = (batch for batch in control.batches if batch.events)
    assert replace(first, load=None) == replace(again, load=None)
    assert first.load is not None  # Measured anew with each try.
    assert first.first_number == 1


def test_a_batch_bears_the_time_at_which_it_was_sent(control: StandIn) -> None:
    """By the control plane's clock, which is another; one that waits there bears an early one."""
    control.ahead_ms = 3_600_000
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("first"))
        control.wait_for(lambda: control.up_to == 1)
        control.accidents.append("held up")
        sent_ms = control.now_ms
        gateway.post(notice("held up"))
        control.wait_for(lambda: control.up_to == 2)
        applied_ms = control.now_ms
        gateway.post(notice("after it"))
        control.wait_for(lambda: control.up_to == 3)
    first, held_up, after_it, *_ = (batch.sent_at_ms for batch in control.batches if batch.events)
    assert first is None
    assert held_up is not None
    assert after_it is not None
    assert held_up <= applied_ms - 500
    assert after_it >= held_up + 500
    assert sent_ms - held_up < 10_000


@pytest.mark.parametrize("accident", ["503", "nonsense"])
def test_what_was_not_applied_is_sent_until_it_is(control: StandIn, accident: str) -> None:
    control.accidents.extend([accident] * 3)
    with driver(control) as gateway:
        gateway.post(notice("kept"))
        control.wait_for(lambda: control.up_to == 1)
    assert texts(control) == ["kept"]


def test_nothing_is_lost_while_the_control_plane_is_down_and_the_time_is_told(
    control: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    with driver(control) as gateway:
        gateway.post(notice("before"))
        control.wait_for(lambda: control.up_to == 1)
        control.stop()
        began = time.monotonic()
        for number in range(3 * BATCH_EVENTS_MAX):
            gateway.post(notice(str(number)))
        wait_until(lambda: gateway.is_away, "the control plane is away")
        wait_until(lambda: "is away, and the job goes on" in caplog.text, "that is logged")
        control.start()
        control.wait_for(lambda: control.up_to == 1 + 3 * BATCH_EVENTS_MAX)
        away_s = time.monotonic() - began
        wait_until(lambda: not gateway.is_away, "the control plane is back")
        control.wait_for(lambda: control.batches[-1].away_ms == 0)
    assert texts(control) == ["before", *map(str, range(3 * BATCH_EVENTS_MAX))]
    (told,) = [batch.away_ms for batch in control.batches if batch.away_ms]
    assert 1_000 * production.AWAY_S <= told <= 1_000 * away_s
    assert max(len(batch.events) for batch in control.batches) == BATCH_EVENTS_MAX
    assert "answers again" in caplog.text


def test_a_driver_may_start_before_the_control_plane(control: StandIn) -> None:
    control.stop()
    with driver(control) as gateway:
        gateway.post(notice("early"))
        wait_until(lambda: gateway.is_away, "the control plane is away")
        control.start()
        control.wait_for(lambda: control.up_to == 1)


def test_only_the_newest_measurements_of_each_subtask_wait(control: StandIn) -> None:
    running = SubtaskChanged(ONE, subtask("map-0"), SubtaskStatus.RUNNING)
    control.accidents.append("slow")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("under way"))
        control.wait_for(lambda: control.up_to == 1)
        for number in range(1, 100):
            gateway.post(metrics("map-0", number))
            gateway.post(metrics("map-1", number))
        gateway.post(running)
        gateway.post(metrics("map-0", 1, attempt=2))
        control.wait_for(lambda: control.up_to == 4)
    assert control.events[1:] == [running, metrics("map-0", 1, attempt=2), metrics("map-1", 99)]


def test_measurements_of_one_kind_leave_those_of_another(control: StandIn) -> None:
    chain = subtask("map-0")

    def stalled(ms: float) -> SubtaskStalled:
        return SubtaskStalled(ONE, chain, 0, ms, "")

    def aligning(ms: float) -> AlignmentProgress:
        return AlignmentProgress(ONE, CheckpointId(1), chain, 0, ms, ())

    control.accidents.append("slow")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("under way"))
        control.wait_for(lambda: control.up_to == 1)
        for number in range(1, 100):
            gateway.post(stalled(number))
            gateway.post(aligning(number))
        gateway.post(metrics("map-0", 1))
        control.wait_for(lambda: control.up_to == 4)
    assert control.events[1:] == [stalled(99), aligning(99), metrics("map-0", 1)]


def test_acknowledgements_do_not_queue_behind_measurements(control: StandIn) -> None:
    """Events other than measurements keep their order, for any number and order of measurements."""
    others = [
        SubtaskChanged(ONE, subtask("map-0"), SubtaskStatus.RUNNING),
        ack("sink-0", 1),
        notice("between"),
        ack("sink-1", 1),
    ]
    chains = [f"map-{index}" for index in range(BATCH_EVENTS_MAX)]
    control.accidents.append("slow")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("under way"))
        control.wait_for(lambda: control.up_to == 1)
        for chain in chains:
            gateway.post(metrics(chain, 1))
        for event in others:
            gateway.post(event)
            gateway.post(metrics("map-7", 2))
        control.wait_for(lambda: control.up_to == 1 + len(others) + len(chains))
    assert control.events[1 : 1 + len(others)] == others
    measured = [metrics(chain, 2 if chain == "map-7" else 1) for chain in chains]
    assert control.events[1 + len(others) :] == measured


def test_acknowledgements_do_not_queue_behind_large_measurements_that_fit_no_batch(
    control: StandIn,
) -> None:
    """Events taken to be sent are not overtaken, so little more is taken than is sent."""
    count = BATCH_BYTES_MAX // 50 // WORD_LENGTH_MAX
    upstream = ("x" * WORD_LENGTH_MAX,) * count
    none = (None,) * count
    gate = GateProgress(0, upstream, none, (0.0,) * count, (0,) * count, (False,) * count)
    many = [
        AlignmentProgress(ONE, CheckpointId(1), subtask(f"map-{index}"), 0, 1.0, (gate,))
        for index in range(500)
    ]
    control.accidents.extend(["slow", "slow"])
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("under way"))
        control.wait_for(lambda: control.up_to == 1)
        for event in many:
            gateway.post(event)
        control.wait_for(lambda: control.up_to > 1)
        gateway.post(ack("sink-0", 1))
        control.wait_for(lambda: control.up_to == 2 + len(many))
    (at,) = [n for n, event in enumerate(control.events) if event == ack("sink-0", 1)]
    assert at <= 1 + 50 + production.MEASUREMENTS_AT_ONCE
    assert [event for event in control.events if isinstance(event, AlignmentProgress)] == many


def test_measurements_of_all_subtasks_get_out_in_turn(control: StandIn) -> None:
    """A subtask that measures again keeps its place, so that none is passed over for ever."""
    control.accidents.append("slow")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("under way"))
        control.wait_for(lambda: control.up_to == 1)
        for number in (1, 2):
            for chain in ("map-0", "map-1", "map-2"):
                gateway.post(metrics(chain, number))
        gateway.post(metrics("map-0", 3))
        control.wait_for(lambda: control.up_to == 4)
    assert control.events[1:] == [metrics("map-0", 3), metrics("map-1", 2), metrics("map-2", 2)]


def test_what_was_measured_before_a_stall_does_not_end_it(control: StandIn) -> None:
    stall = SubtaskStalled(ONE, subtask("map-0"), 0, 1_000.0, "")
    control.accidents.append("slow")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("under way"))
        control.wait_for(lambda: control.up_to == 1)
        gateway.post(metrics("map-1", 1))
        gateway.post(metrics("map-0", 1))
        gateway.post(stall)
        gateway.post(notice("later"))
        control.wait_for(lambda: control.up_to == 5)
        control.accidents.append("slow")
        gateway.post(notice("under way"))
        control.wait_for(lambda: control.up_to == 6)
        for number in (2, 3):  # The one before the stall waits, and is taken back for the newer.
            gateway.post(metrics("map-0", number))
            if number == 2:
                gateway.post(stall)
        gateway.post(notice("later"))
        control.wait_for(lambda: control.up_to == 9)
    order = [metrics("map-0", 1), stall, notice("later"), metrics("map-1", 1)]
    assert control.events[1:5] == order
    assert control.events[6:] == [stall, notice("later"), metrics("map-0", 3)]


def test_measurements_that_were_sent_once_are_not_taken_back(control: StandIn) -> None:
    control.accidents.append("no answer")
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(metrics("map-0", 1))
        control.wait_for(lambda: control.up_to == 1)
        gateway.post(metrics("map-0", 2))
        control.wait_for(lambda: control.up_to == 2)
    assert control.events == [metrics("map-0", 1), metrics("map-0", 2)]


def test_measurements_wait_for_one_another_and_for_nothing_else(
    control: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(production, "MEASUREMENTS_GATHERED_S", 60.0)
    portion = [metrics(f"map-{n}", 1) for n in range(production.MEASUREMENTS_AT_ONCE)]
    with driver(control, heartbeat_s=60) as gateway:
        for event in portion[:2]:
            gateway.post(event)
        gateway.post(notice("at once"))
        control.wait_for(lambda: control.up_to == 3)
        for event in portion:
            gateway.post(event)
        control.wait_for(lambda: control.up_to == 3 + len(portion))
    sent = [list(batch.events) for batch in control.batches if batch.events]
    assert sent == [[notice("at once"), *portion[:2]], portion]


def test_a_silent_driver_gives_a_sign_of_life(control: StandIn) -> None:
    with driver(control, heartbeat_s=0.05):
        control.wait_for(lambda: len(control.batches) >= 3)
    assert {batch.events for batch in control.batches} == {()}
    assert {batch.first_number for batch in control.batches} == {1}


def large_ack(number: int, size: int) -> Acknowledged:
    """An acknowledgement of so many bytes: a gate with channels of long names."""
    count = size // WORD_LENGTH_MAX
    names = ("x" * WORD_LENGTH_MAX,) * count
    gate = GateAlignment(0, names, (None,) * count, (0.0,) * count, (0,) * count)
    part = OperatorAck(subtask("map-0"), metrics=SnapshotMetrics(gates=(gate,)))
    return Acknowledged(ONE, CheckpointId(number), subtask("map-0"), (part,))


def test_large_batches_are_packed_and_bounded_by_their_size(control: StandIn) -> None:
    large = [large_ack(number, 1 << 20) for number in range(9)]
    largest = large_ack(9, 5 << 20)  # Larger than any batch, and sent all the same.
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("small"))
        control.wait_for(lambda: control.up_to == 1)
        for event in (*large, largest):
            gateway.post(event)
        control.wait_for(lambda: control.up_to == 11)
    assert control.encodings[0] is None
    assert set(control.encodings[1:]) == {"gzip"}
    sizes = [len(batch.events) for batch in control.batches if batch.events]
    assert sum(sizes) == 11
    assert max(sizes) <= 3
    assert control.events[1:] == [*large, largest]


def test_a_command_ends_the_poll_that_waits_in_order_and_each_once(control: StandIn) -> None:
    heard = Heard()
    control.repeats = True
    with driver(control, heard):
        for number in range(5):
            control.command(CancelJob(str(number)))
            heard.wait_for(lambda expected=number + 1: len(heard.commands) == expected)
    assert 5 <= control.polls <= 7, "each command is answered to the poll that waits for it"
    assert [command.reason for command in heard.commands] == list("01234")  # type: ignore[union-attr]


def test_commands_go_on_after_an_outage(control: StandIn) -> None:
    heard = Heard()
    with driver(control, heard):
        control.command(CancelJob("before"))
        heard.wait_for(lambda: heard.commands)
        control.stop()
        control.start()
        control.command(CancelJob("after"))
        heard.wait_for(lambda: len(heard.commands) == 2)


def test_a_fenced_driver_hears_why_once_and_says_nothing_more(control: StandIn) -> None:
    heard = Heard()
    with driver(control, heard) as gateway:
        gateway.post(notice("counts"))
        control.wait_for(lambda: control.up_to == 1)
        with control.changed:
            control.fenced = "driver 2 runs the job"
            control.changed.notify_all()
        gateway.post(notice("does not count"))
        heard.wait_for(lambda: heard.fenced)
        gateway.post(notice("neither does this"))
        assert gateway.close(5) is False
    assert heard.fenced == ["driver 2 runs the job"]
    assert heard.refused == []
    assert texts(control) == ["counts"]


@pytest.mark.parametrize("status", [400, 413, 302, 422])
def test_what_no_retry_repairs_ends_the_gateway(control: StandIn, status: int) -> None:
    heard = Heard()
    control.refusal = (status, "this cannot be")
    with driver(control, heard) as gateway:
        gateway.post(notice("refused"))
        heard.wait_for(lambda: heard.refused)
    assert heard.refused == [f"{status}: this cannot be"]


def test_a_busy_control_plane_is_asked_again_quietly(
    control: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    control.busy = 3
    with driver(control, heard) as gateway:
        gateway.post(notice("patient"))
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: gateway.is_away, "it is away", production.AWAY_S + 1)
        control.wait_for(lambda: control.up_to == 1, 30)
    assert not control.busy, "the batch was refused so often"
    assert heard.refused == []
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


def test_a_control_plane_of_the_version_before_is_answered_in_it(control: StandIn) -> None:
    heard = Heard()
    control.version = 1
    with driver(control, heard) as gateway:
        gateway.post(notice("as before"))
        control.wait_for(lambda: control.up_to == 1)
        control.command(CancelJob("in its version"))
        heard.wait_for(lambda: heard.commands)
        assert set(control.versions) == {1}
        control.version = batches.VERSION_MAX  # It is upgraded, and says so with its next answer.
        control.wait_for(lambda: control.versions[-1] == batches.VERSION_MAX)
    assert heard.refused == []
    assert texts(control) == ["as before"]


@pytest.mark.parametrize(("version", "bad", "waited"), [(3, 0, 0.0), (batches.VERSION_MAX, 7, 2.5)])
def test_a_control_plane_gets_the_fields_that_it_knows(
    control: StandIn, version: int, bad: int, waited: float
) -> None:
    heard, sent = Heard(), metrics("a-0", 1)
    control.version = version
    with driver(control, heard) as gateway:
        gateway.post(replace(sent, bad_records=7, cpu_wait_ms=2.5))
        control.wait_for(lambda: control.up_to == 1)
    assert control.versions == [version]
    assert control.events == [replace(sent, bad_records=bad, cpu_wait_ms=waited)]
    assert heard.refused == []


def test_a_text_that_is_too_long_for_the_control_plane_is_cut(control: StandIn) -> None:
    with driver(control, Heard()) as gateway:
        gateway.post(notice("x" * 200_000))
        control.wait_for(lambda: control.up_to == 1)
    (text,) = texts(control)
    assert len(text) == TEXT_LENGTH_MAX
    assert text.endswith("more characters were cut off")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_unknown_token_is_tried_again_for_a_while(control: StandIn, status: int) -> None:
    heard = Heard()
    control.refusal = (status, "who is that")
    with driver(control, heard, unknown_max_s=60) as gateway:
        gateway.post(notice("patient"))
        wait_until(lambda: gateway.is_away, "the control plane is away")
        control.refusal = None
        control.wait_for(lambda: control.up_to == 1)
    assert heard.refused == []


def test_a_token_that_stays_unknown_is_refused(control: StandIn) -> None:
    heard = Heard()
    control.refusal = (401, "who is that")
    with driver(control, heard, unknown_max_s=0.3):
        heard.wait_for(lambda: heard.refused)
    assert heard.refused == ["401: who is that"]


def test_two_processes_with_one_job_file_are_found_out(control: StandIn) -> None:
    heard = Heard()
    with driver(control) as first:
        first.post(notice("first"))
        control.wait_for(lambda: control.up_to == 1)
        with driver(control, heard):
            heard.wait_for(lambda: heard.refused)
    assert "two processes run with the same job file" in heard.refused[0]


def test_a_control_plane_that_forgot_what_it_had_is_refused(control: StandIn) -> None:
    heard = Heard()
    with driver(control, heard) as gateway:
        for number in range(3):
            gateway.post(notice(str(number)))
        control.wait_for(lambda: control.up_to == 3)
        wait_until(lambda: not gateway._has_work, "all was said")
        with control.changed:
            control.up_to = 1  # As after its database was restored from yesterday.
        heard.wait_for(lambda: heard.refused)
    assert "lost events of this driver" in heard.refused[0]


def test_nothing_but_measurements_follows_the_last_event(control: StandIn) -> None:
    """A worker may have had an acknowledgement on its way when the driver was stopped."""
    with driver(control, heartbeat_s=60) as gateway:
        gateway.post(notice("before"))
        gateway.post_last(DriverLost(1, "stopped"))
        gateway.post(large_ack(1, 10))
        gateway.post(metrics("map-0", 7))
        control.wait_for(lambda: control.events_of(SubtaskMetrics))
    assert [type(event) for event in control.events] == [Notice, DriverLost, SubtaskMetrics]


def test_closing_gets_the_last_events_out_although_the_control_plane_comes_back_late(
    control: StandIn,
) -> None:
    control.stop()
    gateway = Gateway(control.address, Heard())
    gateway.start()
    gateway.post(notice("the end"))
    timer = threading.Timer(0.5, control.start)
    timer.start()
    try:
        assert gateway.close(20) is True
    finally:
        timer.join()
    assert texts(control) == ["the end"]


def test_closing_gives_up_after_its_time_and_says_so(control: StandIn) -> None:
    control.stop()
    gateway = Gateway(control.address, Heard())
    gateway.start()
    gateway.post(notice("unheard"))
    began = time.monotonic()
    assert gateway.close(0.5) is False
    assert time.monotonic() - began < 30


def test_closing_does_not_wait_where_there_is_nothing_to_say(control: StandIn) -> None:
    gateway = Gateway(control.address, Heard(), heartbeat_s=0.05)
    gateway.start()
    gateway.post(notice("said"))
    control.wait_for(lambda: control.up_to == 1)
    control.stop()
    wait_until(lambda: gateway.is_away, "the control plane is away")
    began = time.monotonic()
    assert gateway.close(60) is True
    assert time.monotonic() - began < 30


def test_closing_ends_a_poll_that_waits(control: StandIn) -> None:
    gateway = Gateway(control.address, Heard())
    gateway.start()
    control.wait_for(lambda: control.batches)
    assert gateway.close(production.POLL_WAIT_S - 5) is True


def test_a_control_plane_that_hangs_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, as a stopped process does, and never answers."""
    monkeypatch.setattr(production, "POST_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        gateway = Gateway(GatewayAddress(url, JOB, TOKEN), Heard())
        gateway.start()
        try:
            gateway.post(notice("unheard"))
            wait_until(lambda: gateway.is_away, "the control plane is away")
        finally:
            gateway.close(0.1)


def test_a_driver_whose_control_plane_is_gone_for_good_ends_when_it_was_told_to(
    control: StandIn,
) -> None:
    heard = Heard()
    with driver(control, heard, flush_s=0.1, alone_max_s=1.5) as gateway:
        gateway.post(notice("before"))
        control.wait_for(lambda: control.up_to == 1)
        control.stop()
        began = time.monotonic()
        heard.wait_for(lambda: heard.alone)
        assert time.monotonic() - began >= 1.0  # Its last sign of life may be half a second old.
        (cause,) = heard.alone
        assert "and this driver was told to end after 1.5 s; the last try: " in cause
        control.start()
        gateway.post(notice("after"))
        gateway.close(0.5)
    assert texts(control) == ["before"]
    assert (heard.fenced, heard.refused) == ([], [])


def test_any_answer_shows_that_the_control_plane_is_there(control: StandIn) -> None:
    """Busy for longer than a driver may be alone."""
    heard = Heard()
    control.busy = 8  # Each asks for a pause.
    with driver(control, heard, alone_max_s=0.5) as gateway:
        gateway.post(notice("patient"))
        control.wait_for(lambda: control.up_to == 1)
    assert (control.busy, heard.alone) == (0, [])


def test_a_driver_that_was_stopped_for_long_was_not_alone(
    control: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    with driver(control, heard, alone_max_s=600.0) as gateway:
        control.wait_for(lambda: control.batches)
        gateway._tried -= 3_600.0  # As if this process had stood still for an hour,
        control.stop()  # and its first try after that failed.
        wait_until(lambda: gateway._alone_s > 0, "it has tried in vain")
        wait_until(lambda: gateway.is_away, "the control plane is away")
        assert gateway._alone_s < production.TRY_MAX_S + 60
        control.start()
        control.wait_for(lambda: gateway._alone_s == 0)
    assert heard.alone == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://weir.example", "in the clear"),
        ("http://10.0.0.1:8000", "in the clear"),
        ("ftp://localhost", "no http or https URL"),
        ("localhost:8000", "no http or https URL"),
        ("https://user@weir.example", "no user"),
        ("https://weir.example?a=1", "no user"),
    ],
)
def test_an_url_that_would_not_do_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        GatewayAddress(url, JOB, TOKEN)


@pytest.mark.parametrize(
    "url", ["https://weir.example/base/", "http://localhost:1", "http://127.0.0.2", "http://[::1]"]
)
def test_tls_or_the_own_machine_will_do(url: str) -> None:
    address = GatewayAddress(url, JOB, TOKEN)
    assert address.path.endswith("/gateway/v1/jobs/job%20one")
    assert TOKEN not in repr(address)


def test_plain_http_over_a_network_is_a_decision() -> None:
    GatewayAddress("http://weir.example", JOB, TOKEN, allow_plain_http=True)


@pytest.mark.parametrize("pages", ["", "https://weir.example"])
def test_claims_name_the_control_plane_as_people_reach_it(pages: str) -> None:
    address = GatewayAddress("https://gateway.example", JOB, TOKEN, control_plane=pages)
    claim = load_managed(Gateway(address, Heard()).claim)
    assert claim == ManagedClaim.with_token(pages or "https://gateway.example", TOKEN)


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_a_trigger_is_as_old_as_it_was_for_the_control_plane(
    control: StandIn, ahead_ms: int
) -> None:
    """Whose clock may be another: a start delay of an hour would be told, or none at all."""
    clock, heard = ManualClock(), Heard()
    clock.ms = 1_700_000_000_000
    triggered_ms = clock.now_ms() + ahead_ms
    control.sent_at_ms = triggered_ms + 40
    with driver(control, heard, clock=clock):
        control.command(
            TriggerCheckpoint(AttemptNumber(1), barrier(1, triggered_at_ms=triggered_ms), ())
        )
        heard.wait_for(lambda: heard.commands)
    (command,) = heard.commands
    assert isinstance(command, TriggerCheckpoint)
    assert command.barrier.triggered_at_ms == clock.now_ms() - 40
