"""Batches on the network: what comes back as it was, what is refused and where, all versions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import ack, pending, started, subtask
from tests.unit.protocol.test_lifecycle import PLANNED
from tests.unit.wire.fitting import fitting
from weir.bounds import TEXT_LENGTH_MAX
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskId
from weir.protocol import wire
from weir.protocol.driver_messages import (
    BATCH_EVENTS_MAX,
    BatchApplied,
    CancelJob,
    CommandBatch,
    DriverLoad,
    EventBatch,
    NumberedCommand,
)
from weir.protocol.events import Notice, Recovered, WorkerStarted
from weir.protocol.inspection import Inspected, InspectionKind, InspectSubtask
from weir.protocol.lifecycle import ENDS_AS, CheckpointStatus, FailureReason, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    CheckpointsRestored,
    GateAlignment,
    OperatorAck,
    RecordAborted,
    SampledCall,
    SnapshotMetrics,
    SubtaskChanged,
    SubtaskMetrics,
    Switch,
    Tick,
)
from weir.protocol.slot_memory import MemoryLimit, MemorySource
from weir.wire import batches
from weir.wire.batches import COMMAND_CLASSES, EVENT_CLASSES, VERSION_MAX, VERSION_MIN

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
HERE = Path(__file__).parent

events = st.one_of(*map(fitting, EVENT_CLASSES))
commands = st.one_of(*map(fitting, COMMAND_CLASSES))


def recorded(what: str) -> bytes:
    """One of each message, as the version before wrote them."""
    return (HERE / f"recorded_version_1_{what}.json").read_bytes()


def body(*sent: Any) -> bytes:
    """A batch of these events, from number 1."""
    return batches.encode_batch(1, map(batches.encode_event, sent))


def raw(event: dict[str, Any]) -> bytes:
    """A batch of one event, which may fit no class."""
    return json.dumps({"first_number": 1, "events": [event]}).encode()


def notice(**changed: Any) -> dict[str, Any]:
    return {"type": "Notice", "at_ms": 1, "text": "hello"} | changed


def status(**changed: Any) -> dict[str, Any]:
    chain = {"operator": "map", "index": 0}
    return {"type": "SubtaskChanged", "attempt": 1, "chain": chain, "status": "running"} | changed


# Versions.


@pytest.mark.parametrize("version", VERSIONS)
def test_events_of_the_version_before_are_read_and_written_as_then(version: int) -> None:
    read = batches.decode_batch(recorded("events"), version)
    assert {type(event) for event in read.events} == set(EVENT_CLASSES) - {Inspected}
    assert read == wire.from_wire(EventBatch, json.loads(recorded("events")))
    sent = map(batches.encode_event, read.events)
    written = json.loads(batches.encode_batch(read.first_number, sent, read.away_ms, version))
    if version >= 4:
        (counted,) = (e for e in written["events"] if e["type"] == "SubtaskMetrics")
        assert (counted.pop("bad_records"), counted.pop("cpu_wait_ms")) == (0, 0)
    if version >= 6:
        assert counted.pop("memory_bytes") == 0
    if version >= 7:
        assert (counted.pop("cpu_pressure_ms"), counted.pop("calls")) == (0, [])
    if version >= 10:
        assert counted.pop("beside") is None
    if version >= 9:
        (recovered,) = (e for e in written["events"] if e["type"] == "Recovered")
        assert recovered.pop("restored_local_bytes") is None
    if version >= 5:
        (planned,) = (e for e in written["events"] if e["type"] == "JobPlanned")
        assert planned["restart"].pop("ends_on_repeated_error") is True
        (acknowledged,) = (e for e in written["events"] if e["type"] == "Acknowledged")
        if version >= 7:
            assert acknowledged.pop("writing_ms") == []
        metrics = [operator["metrics"] for operator in acknowledged["operators"]]
        for one in metrics:
            assert one.pop("bytes_persisted_at_outputs") == 0
            assert (one.pop("switched"), one.pop("switched_ms")) == (None, None)
        sizes = [gate.pop("in_flight") for one in metrics for gate in one["gates"]]
        assert sizes == [[]] * len(sizes) != []
    if version >= 9:
        (started,) = (e for e in written["events"] if e["type"] == "WorkerStarted")
        assert started.pop("memory_limit") is None
    assert written == json.loads(recorded("events"))


@pytest.mark.parametrize("version", VERSIONS)
def test_commands_of_the_version_before_are_read_and_written_as_then(version: int) -> None:
    read = batches.decode_commands(recorded("commands"), version)
    assert {type(n.command) for n in read.commands} == set(COMMAND_CLASSES) - {InspectSubtask}
    assert read == wire.from_wire(CommandBatch, json.loads(recorded("commands")))
    written = json.loads(batches.encode_commands(read, version))
    if version >= 8:
        for one in written["commands"]:
            under_way = one["command"].get("checkpoint") or one["command"]
            if "barrier" in under_way:
                assert under_way["barrier"]["options"].pop("base_id") is None
    assert written == json.loads(recorded("commands"))
    applied = batches.decode_applied(recorded("applied"), version)
    assert json.loads(batches.encode_applied(applied)) == json.loads(recorded("applied"))


def test_the_lower_of_both_highest_versions_is_written() -> None:
    assert [batches.agreed(theirs) for theirs in (0, 1, 10, 11, 99)] == [None, 1, 10, 11, 11]


def test_texts_of_the_version_before_are_cut_and_those_of_this_one_refused() -> None:
    sent = raw(notice(text="x" * (TEXT_LENGTH_MAX + 1)))
    (read,) = batches.decode_batch(sent, 1).events
    assert isinstance(read, Notice)
    assert len(read.text) == TEXT_LENGTH_MAX
    with pytest.raises(ProtocolError, match=r"events\[0\]\.text: .* of length <= 65536"):
        batches.decode_batch(sent, 2)


@pytest.mark.parametrize("reason", sorted(ENDS_AS))
def test_drivers_of_the_versions_before_get_reasons_and_a_status_that_they_know(
    reason: FailureReason,
) -> None:
    """They refuse others and end, although a stop, for one, aborts while they are still needed."""
    known = set(FailureReason) - PLANNED
    ended = replace(pending(), status=ENDS_AS[reason])
    batch = CommandBatch((NumberedCommand(1, RecordAborted(ended, reason, "why")),), 7)
    assert batches.decode_commands(batches.encode_commands(batch)) == batch
    for version in (1, 2):
        sent = batches.encode_commands(batch, version)
        read = batches.decode_commands(sent, version).commands[0].command
        assert isinstance(read, RecordAborted)
        assert read.checkpoint.status is CheckpointStatus.ABORTED
        assert read.reason in known
        assert (read.reason is reason) is (reason in known)
        assert read.cause == "why"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_field_is_refused_in_each_version(version: int) -> None:
    for sent in (
        raw(notice(more=1)),
        raw(status(chain={"operator": "a", "index": 0, "more": 1})),
        b'{"first_number": 1, "events": [], "more": 1}',
    ):
        with pytest.raises(ProtocolError, match="unknown field `more`"):
            batches.decode_batch(sent, version)


@pytest.mark.parametrize(
    ("version", "known"),
    [
        (3, ()),
        (5, ("bad_records", "cpu_wait_ms")),
        (6, ("bad_records", "cpu_wait_ms", "memory_bytes")),
    ],
)
def test_a_control_plane_of_a_version_before_is_not_told_of_later_counters(
    version: int, known: tuple[str, ...]
) -> None:
    calls = (SampledCall(OperatorId("b"), "parse", "orders.py", 41, 0.75),)
    later = {
        "bad_records": 7, "cpu_wait_ms": 2.5, "memory_bytes": 1 << 33, "cpu_pressure_ms": 9.5,
        "calls": calls,
    }  # fmt: skip
    bare = SubtaskMetrics(
        AttemptNumber(1), SubtaskId(OperatorId("a"), 0), 1, 1, 2, 2, 3.0, 4.0, 5.0, None
    )
    event = batches.encode_event(replace(bare, **later))
    assert batches.decode_batch(batches.encode_batch(1, [event])).events == (
        replace(bare, **later),
    )
    written = batches.encode_batch(1, [event], version=version)
    assert [name for name in later if f'"{name}"'.encode() in written] == list(known)
    read = batches.decode_batch(written, version).events
    assert read == (replace(bare, **{name: later[name] for name in known}),)


def test_a_control_plane_of_the_version_before_is_not_told_of_limits() -> None:
    limit = MemoryLimit(400_000_000, MemorySource.CGROUP)
    started = WorkerStarted(1, AttemptNumber(1), 0, 77, limit)
    event = batches.encode_event(started)
    written = batches.encode_batch(1, [event])
    assert batches.decode_batch(written).events == (started,)
    before = batches.encode_batch(1, [event], version=8)
    assert batches.decode_batch(before, 8).events == (replace(started, memory_limit=None),)


def test_a_control_plane_of_the_version_before_is_told_neither_loads_nor_writing() -> None:
    load = DriverLoad(2_000.0, 120.5, 300.0)
    chain = SubtaskId(OperatorId("a"), 0)
    acknowledged = Acknowledged(
        AttemptNumber(1), CheckpointId(2), chain, (OperatorAck(chain),), (4.5,)
    )
    event = batches.encode_event(acknowledged)
    written = batches.encode_batch(1, [event], load=load)
    assert batches.decode_batch(written) == EventBatch(1, (acknowledged,), load=load)
    before = batches.encode_batch(1, [event], version=6, load=load)
    assert b"load" not in before
    assert b"writing_ms" not in before
    assert batches.decode_batch(before, 6) == EventBatch(1, (replace(acknowledged, writing_ms=()),))


def test_neither_side_of_the_version_before_is_told_times() -> None:
    written = batches.encode_batch(4, [], away_ms=3, sent_at_ms=1_763_728_200_512)
    assert batches.decode_batch(written) == EventBatch(4, (), 3, sent_at_ms=1_763_728_200_512)
    before = batches.encode_batch(4, [], away_ms=3, version=10, sent_at_ms=1_763_728_200_512)
    assert json.loads(before) == {"first_number": 4, "away_ms": 3, "events": []}
    applied = BatchApplied(7, 1_763_728_200_512)
    assert batches.decode_applied(batches.encode_applied(applied)) == applied
    assert json.loads(batches.encode_applied(applied, 10)) == {"up_to": 7}


def test_a_control_plane_of_the_version_before_is_not_told_of_local_copies() -> None:
    recovered = Recovered(
        1, AttemptNumber(2), "x", None, 0.0, 1.0, 2.0, 100, 3, restored_local_bytes=60
    )
    event = batches.encode_event(recovered)
    assert batches.decode_batch(batches.encode_batch(1, [event])).events == (recovered,)
    before = batches.encode_batch(1, [event], version=8)
    assert b"local" not in before
    assert batches.decode_batch(before, 8).events == (
        replace(recovered, restored_local_bytes=None),
    )


def test_a_control_plane_of_the_version_before_is_not_told_of_records_under_way() -> None:
    gates = (
        GateAlignment(0, ("a-0", "a-1"), (0.0, 1.5), (0.0, 0.0), (1, 2), (0, 700)),
        GateAlignment(1, ("b-0",), (1.0,), (0.0,), (3,)),
    )
    known = SnapshotMetrics(bytes_persisted_in_flight=900, unaligned=True, gates=gates)
    metrics = replace(
        known, bytes_persisted_at_outputs=200, switched=Switch.INPUT, switched_ms=512.0
    )
    parts = ack().operators
    sent = replace(ack(), operators=(replace(parts[0], metrics=metrics), *parts[1:]))
    event = batches.encode_event(sent)
    assert batches.decode_batch(batches.encode_batch(1, [event])).events == (sent,)
    bare = replace(known, gates=tuple(replace(gate, in_flight=()) for gate in gates))
    for version in range(VERSION_MIN, 5):
        written = batches.encode_batch(1, [event], version=version)
        assert not any(word in written for word in (b'in_flight":[', b"switched", b"at_outputs"))
        (read,) = batches.decode_batch(written, version).events
        assert read == replace(sent, operators=(replace(parts[0], metrics=bare), *parts[1:]))


def test_an_inspection_is_between_sides_that_know_it() -> None:
    """Its answer has a number, and its request would end a driver that cannot read it."""
    asked = InspectSubtask(AttemptNumber(1), "r1", InspectionKind.STACKS, OperatorId("map"), 0)
    commands = (NumberedCommand(3, asked), NumberedCommand(4, CancelJob("enough")))
    assert batches.known(commands, VERSION_MAX) == commands
    assert batches.known(commands, 7) == commands[1:]
    answer = Inspected(AttemptNumber(1), "r1", 0, "nothing")
    sent = [batches.encode_event(event) for event in (Notice(1, "a"), answer, Notice(1, "b"))]
    read = batches.decode_batch(batches.encode_batch(5, sent))
    assert read.events == (Notice(1, "a"), answer, Notice(1, "b"))
    before = batches.decode_batch(batches.encode_batch(5, sent, version=7), 7)
    assert before == EventBatch(5, (Notice(1, "a"), Tick(), Notice(1, "b")))


# What fits.


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=4), st.sampled_from(VERSIONS))
def test_events_come_back_as_they_were(sent: list[Any], version: int) -> None:
    assert batches.decode_batch(body(*sent), version).events == tuple(sent)


@settings(max_examples=100, deadline=None)
@given(st.lists(commands, max_size=4), st.sampled_from(VERSIONS))
def test_commands_come_back_as_they_were(sent: list[Any], version: int) -> None:
    batch = CommandBatch(tuple(NumberedCommand(n + 1, c) for n, c in enumerate(sent)), 7)
    assert batches.decode_commands(batches.encode_commands(batch), version) == batch


@settings(max_examples=100, deadline=None)
@given(events)
def test_the_form_is_that_of_messages_everywhere_else(sent: Any) -> None:
    assert json.loads(batches.encode_event(sent)) == wire.encode(sent)


def test_a_field_with_a_default_may_be_missing() -> None:
    (read,) = batches.decode_batch(raw(status())).events
    assert read == SubtaskChanged(AttemptNumber(1), subtask("map-0"), SubtaskStatus.RUNNING)


def test_characters_that_no_database_stores_are_replaced() -> None:
    for text, stored in (
        ("a\0b", "a�b"),
        ("a\\u0000b", "a\\u0000b"),  # Six plain characters.
        ("a\\\0", "a\\�"),
        ("\ud800", "?"),
        ("\udc00\ud800x", "??x"),
        ("😀\0", "😀�"),
    ):
        (read,) = batches.decode_batch(raw(notice(text=text))).events  # json escapes all of them.
        assert read == Notice(1, stored)
    (read,) = batches.decode_batch(body(Notice(1, "a\ud800\0"))).events
    assert read == Notice(1, "a?�")


def test_sets_go_out_in_a_fixed_order() -> None:
    sinks = json.loads(batches.encode_event(started()))["plan"]["sinks"]
    assert len(sinks) > 1
    assert sinks == sorted(sinks, key=lambda s: (s["operator"], s["index"]))


# What is refused, and where.


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"first_number": 1}', "missing required field `events`"),
        (b'{"first_number": 1' + b"0" * 5_000 + b', "events": []}', "first_number: "),
        (b'{"first_number": 1, "events": [], "away_ms": -1}', "away_ms: Expected `int` >= 0"),
        (b"\xff\xfe", "malformed"),
        (raw({"type": "Surprise"}), r"events\[0\]\.type: Invalid value 'Surprise'"),
        (raw({}), r"events\[0\]: .*missing required field `type`"),
        (raw(notice(at_ms="1")), r"events\[0\]\.at_ms: Expected `int`, got `str`"),
        (raw(notice(at_ms=True)), "Expected `int`, got `bool`"),
        (raw(notice(at_ms=1.0)), "Expected `int`, got `float`"),
        (raw(notice(at_ms=10**18)), "at_ms: Expected `int` <= 32503680000000"),
        (raw(notice(at_ms=-(10**18))), "at_ms: Expected `int` >= 0"),
        (raw(status(attempt=10**400)), r"events\[0\]\.attempt: "),
        (
            raw(status(chain={"operator": "map", "index": 10**9})),
            r"chain\.index: .* <= 32768",
        ),
        (raw(status(chain={"operator": "map", "index": -1})), r"chain\.index: Expected `int` >= 0"),
        (
            raw(status(chain={"operator": "m" * 301, "index": 0})),
            r"chain\.operator: .* <= 300",
        ),
        (raw(status(status="sleeping")), r"events\[0\]\.status: Invalid enum value 'sleeping'"),
        (raw(status(details={"at": 10**300})), r"events\[0\]\.details: .* has no JSON form"),
        (raw(status(details={"at": "x" * 300_000})), r"details: .* bytes of JSON; at most 262144"),
        (raw(status(details=[])), r"events\[0\]\.details: Expected `object`"),
        (b'{"first_number":1,"events":[{"type":"Notice","at_ms":1,"text":"\x00"}]}', "malformed"),
        (
            json.dumps({"first_number": 1, "events": [{"type": "Tick"}] * 1_001}).encode(),
            "events: Expected `array` of length <= 1000",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_the_error_says_where(sent: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        batches.decode_batch(sent)


def test_details_nested_too_deeply_are_refused() -> None:
    for depth in (33, 5_000):
        nested = b'{"in":' * depth + b"1" + b"}" * depth
        sent = raw(status()).replace(b'"status"', b'"details": %b, "status"' % nested)
        with pytest.raises(ProtocolError, match=r"nested deeper than 32|recursion"):
            batches.decode_batch(sent)


def test_settings_that_contradict_themselves_are_refused_with_their_place() -> None:
    data = json.loads(recorded("events"))
    assert data["events"][0]["type"] == "JobPlanned"
    data["events"][0]["checkpoints"]["interval_ms"] = 1
    with pytest.raises(ProtocolError, match=r"events\[0\]\.checkpoints: .*at least 10: "):
        batches.decode_batch(json.dumps(data).encode())


def test_more_events_than_a_batch_holds_are_refused_before_they_are_made() -> None:
    with pytest.raises(ProtocolError, match="length <= 1000"):
        batches.decode_batch(body(*[Notice(1, "")] * (BATCH_EVENTS_MAX + 1)))


def test_a_value_that_does_not_fit_is_refused_when_it_is_written() -> None:
    wrong = CheckpointsRestored((), "7")  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"CheckpointsRestored\.next_id: Expected `int`"):
        batches.encode_event(wrong)
    metrics = SnapshotMetrics(sync_ms=float("nan"))
    part = replace(ack().operators[0], metrics=metrics)
    with pytest.raises(ProtocolError, match=r"Acknowledged\.operators\[0\]\.metrics\.sync_ms"):
        batches.encode_event(replace(ack(), operators=(part,)))
    details: Any = {"at": float("inf")}
    changed = SubtaskChanged(AttemptNumber(1), subtask("map-0"), SubtaskStatus.RUNNING, "", details)
    with pytest.raises(ProtocolError, match=r"SubtaskChanged\.details: .* has no JSON form"):
        batches.encode_event(changed)


def test_a_text_for_people_is_cut_when_it_is_written() -> None:
    (read,) = batches.decode_batch(body(Notice(1, "x" * 10**6))).events
    assert isinstance(read, Notice)
    assert len(read.text) == TEXT_LENGTH_MAX
    assert read.text.endswith("more characters were cut off")


def test_an_acknowledgement_of_a_batch_is_read() -> None:
    assert batches.decode_applied(b'{"up_to": 7}') == BatchApplied(7)
    with pytest.raises(ProtocolError):
        batches.decode_applied(b'["nonsense"]')
