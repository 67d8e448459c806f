"""Messages of control connections: equal to the plain codec in form, values and refusals."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from tests.builders import handle
from tests.unit.protocol.test_wire import acknowledged, values_of
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import SlotAccepted, SlotFailed, WorkerHeartbeat
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SCHEMA_VERSION, SubtaskChanged
from weir.protocol.wire import encode_message
from weir.wire import control_messages
from weir.wire.control_messages import ControlMessage, decode_control, encode_control

HEARTBEAT = WorkerHeartbeat(AttemptNumber(1), 0, 2)


@settings(max_examples=400, deadline=None)
@given(values_of(ControlMessage))
def test_every_message_comes_back_as_it_was_in_the_form_of_the_plain_codec(
    message: ControlMessage,
) -> None:
    sent = encode_control(message)
    assert json.loads(sent) == encode_message(message)
    assert decode_control(sent) == message
    assert decode_control(json.dumps(encode_message(message)).encode()) == message


def test_the_plain_codec_is_not_needed_for_what_workers_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_messages, "encode_message", None)
    monkeypatch.setattr(control_messages, "decode_message", None)
    part = acknowledged().operators[0]
    inline = replace(part, handles=(handle(inline=b"\0state", path=None),))
    failed = SubtaskChanged(
        AttemptNumber(1), acknowledged().chain, SubtaskStatus.FAILED, "why", {"a": [1, None]}
    )
    for message in (
        acknowledged(),
        replace(acknowledged(), operators=(inline,)),
        HEARTBEAT,
        failed,
    ):
        assert decode_control(encode_control(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        SlotAccepted(JobId("j"), b"", (("password", "half \udc80 a pair"),)),
        SlotFailed(0, "\ud800"),
        replace(HEARTBEAT, rounds=2**70),
    ],
    ids=["secret", "text", "number"],
)
def test_what_the_fast_codec_refuses_comes_back_as_it_was(message: Any) -> None:
    assert decode_control(encode_control(message)) == message


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"attempt": "1"}, "attempt: expected int, got str"),
        ({"attempt": True}, "attempt: expected int, got bool"),
        ({"more": 1}, "has no more"),
        ({"rounds": None}, "rounds: expected int"),
        ({"type": "NoSuchMessage"}, "unknown type 'NoSuchMessage'"),
    ],
    ids=["type", "truth", "field", "null", "message"],
)
def test_a_message_that_does_not_fit_is_refused_with_its_place(
    changed: dict[str, Any], problem: str
) -> None:
    envelope = encode_message(HEARTBEAT)
    envelope["message"] |= changed
    with pytest.raises(ProtocolError, match=problem):
        decode_control(json.dumps(envelope).encode())


def test_an_envelope_of_another_version_is_refused() -> None:
    envelope = encode_message(HEARTBEAT) | {"schema_version": SCHEMA_VERSION + 1}
    with pytest.raises(ProtocolError, match="run the same version of Weir on both sides"):
        decode_control(json.dumps(envelope).encode())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused_when_it_is_written(value: float) -> None:
    failed = SubtaskChanged(
        AttemptNumber(1), acknowledged().chain, SubtaskStatus.FAILED, "", {"ms": value}
    )
    with pytest.raises(ProtocolError, match="details"):
        encode_control(failed)
    part = acknowledged().operators[0]
    measured = replace(part, metrics=replace(part.metrics, sync_ms=value))
    with pytest.raises(ProtocolError, match="sync_ms: expected a finite number"):
        encode_control(replace(acknowledged(), operators=(measured,)))
