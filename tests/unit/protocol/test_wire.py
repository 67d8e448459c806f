"""Messages as JSON and back."""

import json
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import NoneType
from typing import Any, NewType, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import ack, barrier, completed, handle, started, subtask
from weir.config import (
    CheckpointConfig,
    CheckpointingMode,
    RestartConfig,
    RestartStrategyKind,
    Retention,
)
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId, KeyGroupRange, StateHandle
from weir.protocol.driver_messages import BatchApplied, CommandBatch, DriverLost, EventBatch
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import (
    SCHEMA_VERSION,
    Acknowledged,
    CheckpointsRestored,
    GateAlignment,
    OperatorAck,
    SnapshotMetrics,
    SubtaskChanged,
    TriggerCheckpoint,
)
from weir.protocol.wire import (
    WireMessage,
    decode,
    decode_message,
    encode,
    encode_message,
    from_wire,
    to_wire,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(),
    str: st.text(max_size=5),
    bool: st.booleans(),
    float: finite,
    bytes: st.binary(max_size=8),
    NoneType: st.none(),
}


# Settings check themselves, so not any values will do.
CHECKED: dict[object, st.SearchStrategy[Any]] = {
    CheckpointConfig: st.builds(
        CheckpointConfig,
        interval_ms=st.none() | st.integers(10, 10**6),
        mode=st.sampled_from(CheckpointingMode),
        timeout_ms=st.integers(10, 10**6),
        tolerable_failures=st.integers(0, 10**6),
        retained_max=st.integers(1, 10),
        retention=st.sampled_from(Retention),
        storage=st.none() | st.text(max_size=5),
    ),
    RestartConfig: st.builds(
        RestartConfig,
        kind=st.none() | st.sampled_from(RestartStrategyKind),
        backoff_multiplier=st.floats(1, 10),
        jitter=st.floats(0, 1),
    ),
}


@cache
def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotated type; unlike ``from_type`` it also varies fields with a default."""
    arguments = get_args(annotation)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if isinstance(annotation, NewType):
        return values_of(annotation.__supertype__)
    if get_origin(annotation) is dict:
        return st.dictionaries(st.text(max_size=3), json_values, max_size=3)
    if get_origin(annotation) is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=3)
    if get_origin(annotation) is tuple and arguments[-1] is ...:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if get_origin(annotation) is tuple:
        return st.tuples(*map(values_of, arguments))
    if arguments:
        return st.one_of(*map(values_of, arguments))
    if annotation in CHECKED:
        return CHECKED[annotation]
    if not is_dataclass(annotation):
        return st.sampled_from(annotation)
    hints = get_type_hints(annotation)
    return st.builds(
        cast("type[Any]", annotation),
        **{f.name: values_of(hints[f.name]) for f in fields(annotation)},
    )


def acknowledged() -> Acknowledged:
    """A full acknowledgement: two operators, a gate of four channels."""
    gate = GateAlignment(
        0, ("a-0", "a-1", "a-2", "a-3"), (0.0, 1.5, None, 2.5), (2.5, 1.0, 0.0, 0.0), (1, 2, 3, 4)
    )
    message = ack(handles=(handle(key_groups=KeyGroupRange(0, 63)),))
    head = replace(message.operators[0], metrics=SnapshotMetrics(sync_ms=1.25, gates=(gate,)))
    return replace(message, operators=(head, *message.operators[1:]))


@settings(max_examples=400)
@given(values_of(WireMessage))
def test_every_message_comes_back_as_it_was(message: WireMessage) -> None:
    sent = json.dumps(encode_message(message), allow_nan=False)
    assert decode_message(json.loads(sent)) == message


@settings(max_examples=100)
@given(values_of(EventBatch) | values_of(CommandBatch) | values_of(BatchApplied))
def test_what_the_gateway_carries_comes_back_as_it_was(
    sent: EventBatch | CommandBatch | BatchApplied,
) -> None:
    text = json.dumps(to_wire(sent), allow_nan=False)
    assert from_wire(type(sent), json.loads(text)) == sent


def test_an_event_in_a_batch_is_encoded_as_it_is_alone() -> None:
    """The driver encodes each once, when it is first sent, and joins them."""
    events = (acknowledged(), DriverLost(1, "x"), status_change())
    batch = to_wire(EventBatch(7, events, away_ms=3))
    assert batch["events"] == [encode(event) for event in events]
    assert batch.keys() == {"first_number", "events", "away_ms", "load", "sent_at_ms"}


def test_the_form_on_the_wire() -> None:
    assert encode_message(barrier_command()) == {
        "schema_version": SCHEMA_VERSION,
        "message": {
            "type": "TriggerCheckpoint",
            "attempt": 1,
            "barrier": {
                "checkpoint_id": 3,
                "triggered_at_ms": 7,
                "options": {
                    "kind": "checkpoint",
                    "alignment": "aligned",
                    "alignment_timeout_ms": None,
                    "target": None,
                    "base_id": None,
                },
            },
            "sources": [{"operator": "source", "index": 0}],
        },
    }
    assert to_wire(handle(inline=b"\x00\xff"))["inline"] == "AP8="


def barrier_command() -> WireMessage:
    sources = (subtask("source-0"),)
    return TriggerCheckpoint(AttemptNumber(1), barrier(3, triggered_at_ms=7), sources)


def test_sets_go_out_in_a_fixed_order() -> None:
    wire = encode(started())
    names = [sink["index"] for sink in wire["plan"]["sinks"]]
    assert names == sorted(names)


def test_a_field_with_a_default_may_be_missing() -> None:
    data = encode(acknowledged())
    del data["operators"][0]["metrics"]["sync_ms"]
    decoded = decode(data)
    assert isinstance(decoded, Acknowledged)
    assert decoded.operators[0].metrics.sync_ms == 0.0


def test_whole_numbers_are_taken_for_durations() -> None:
    data = to_wire(SnapshotMetrics()) | {"sync_ms": 3}
    assert from_wire(SnapshotMetrics, data) == SnapshotMetrics(sync_ms=3.0)


def changed(path: str, value: Any) -> dict[str, Any]:
    """An encoded acknowledgement with one entry replaced; the last step of the path names it."""
    data = encode(acknowledged())
    *steps, last = path.split(".")
    at: Any = data
    for name in steps:
        at = at[int(name)] if isinstance(at, list) else at[name]
    if isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("type", "Acknowledge", r"message: unknown type 'Acknowledge'; known are Acknowledged"),
        ("type", None, "unknown type None"),
        ("type", ["Acknowledged"], "unknown type"),
        ("attempt", "1", r"message\.attempt: expected int, got str"),
        ("attempt", True, "expected int, got bool"),
        ("attempt", 1.0, "expected int, got float"),
        ("extra", 1, "Acknowledged has no extra"),
        ("operators", {}, r"message\.operators: expected a list, got dict"),
        ("operators.1", 5, r"message\.operators\[1\]: expected an object for OperatorAck, got int"),
        ("operators.0.subtask", {"operator": "a"}, "SubtaskId lacks index"),
        ("operators.0.subtask.operator", None, "expected str, got NoneType"),
        ("operators.0.metrics.sync_ms", "fast", "expected a finite number, got 'fast'"),
        ("operators.0.metrics.sync_ms", float("nan"), "expected a finite number, got nan"),
        ("operators.0.metrics.sync_ms", 10**400, "expected a finite number"),
        ("operators.0.metrics.unaligned", 0, "expected bool, got int"),
        (
            "operators.0.metrics.gates.0.arrived_ms.2",
            "never",
            r"operators\[0\]\.metrics\.gates\[0\]\.arrived_ms\[2\]: expected a finite number",
        ),
        ("operators.0.handles.0.inline", "###", r"handles\[0\]\.inline: not base64"),
        ("operators.0.handles.0.inline", "ä", "not base64"),
        ("operators.0.handles.0.inline", 5, "expected base64 text, got int"),
        ("operators.0.handles.0.key_groups", [0, 63], "expected an object for KeyGroupRange"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_error_says_where(
    path: str, value: object, problem: str
) -> None:
    with pytest.raises(ProtocolError, match=problem):
        decode(changed(path, value))


@pytest.mark.parametrize("data", [None, [], "Acknowledged", 5, {}])
def test_what_is_no_message_at_all_is_refused(data: object) -> None:
    with pytest.raises(ProtocolError, match=r"expected an object|unknown type None"):
        decode(data)


def test_an_unknown_enum_value_is_refused() -> None:
    data = to_wire(barrier(1))
    data["options"]["kind"] = "backup"
    with pytest.raises(ProtocolError, match=r"options\.kind: 'backup' is no CheckpointKind"):
        from_wire(type(barrier(1)), data)


def test_a_set_with_an_entry_twice_is_refused() -> None:
    data = encode(started())
    data["plan"]["sinks"] *= 2
    with pytest.raises(ProtocolError, match=r"plan\.sinks: an entry occurs twice"):
        decode(data)


def test_another_schema_version_is_refused_with_advice() -> None:
    envelope = encode_message(acknowledged())
    for version in (SCHEMA_VERSION + 1, str(SCHEMA_VERSION), True, None):
        with pytest.raises(ProtocolError, match="run the same version of Weir on both sides"):
            decode_message(envelope | {"schema_version": version})


@pytest.mark.parametrize("envelope", [{}, [], {"schema_version": 1}, {"message": {}}])
def test_what_is_no_envelope_is_refused(envelope: object) -> None:
    with pytest.raises(ProtocolError, match="an envelope holds schema_version and message"):
        decode_message(envelope)


@pytest.mark.parametrize(
    "details", [{"at": object()}, {"at": (1, 2)}, {1: 2}, {"at": float("inf")}]
)
def test_details_that_json_would_not_give_back_are_refused_when_sent(
    details: dict[Any, Any],
) -> None:
    with pytest.raises(ProtocolError, match=r"message\.details: .* has no JSON form"):
        encode(replace(status_change(), details=details))


def test_details_nested_too_deeply_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(1_000):
        nested = {"in": nested}
    with pytest.raises(ProtocolError, match="nested deeper than 32"):
        decode(encode(status_change()) | {"details": nested})


def status_change() -> SubtaskChanged:
    return SubtaskChanged(AttemptNumber(1), subtask("map-0"), SubtaskStatus.RUNNING)


def test_a_value_of_the_wrong_type_is_refused_when_sent() -> None:
    wrong = CheckpointsRestored((completed(1),), CheckpointId("7"))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"message\.next_id: expected int, got str"):
        encode(wrong)
    with pytest.raises(ProtocolError, match="OperatorAck is none of"):
        encode(OperatorAck(ack().chain))  # type: ignore[arg-type]


def test_no_field_is_called_as_the_key_that_carries_the_type() -> None:
    for cls in get_args(WireMessage):
        assert is_dataclass(cls)
        assert "type" not in {field.name for field in fields(cls)}


def test_a_handle_alone_can_be_stored_and_read() -> None:
    kept = handle(path=None, key_groups=KeyGroupRange(0, 9))
    assert from_wire(StateHandle, json.loads(json.dumps(to_wire(kept)))) == kept
