"""Messages of control connections as JSON: the form of ``weir.protocol.wire``, by a faster codec.

A job of many subtasks sends hundreds of reports at each checkpoint and each interval of metrics.
msgspec writes and reads them in a tenth of the plain codec's time. It refuses a few values that the
plain codec takes, such as half a surrogate pair in a path or a secret. So the plain codec has the
last word on both sides: it writes and reads what msgspec refuses, and says what is wrong with it.
"""

import json
from typing import TypeAlias, cast

import msgspec

from weir.errors import ProtocolError
from weir.protocol.deployment import SlotCommand, SlotReport, WorkerCommand, WorkerReport
from weir.protocol.messages import SCHEMA_VERSION, Report, SubtaskCommand
from weir.protocol.wire import WireMessage, decode_message, encode_message
from weir.wire.codec import Reader, Writer, union_members
from weir.wire.mirrors import Mirrors

ControlMessage: TypeAlias = (
    Report | SubtaskCommand | SlotReport | SlotCommand | WorkerReport | WorkerCommand
)

_WRITER = Writer(Mirrors(are_read=False, cuts_prose=False, are_bounded=False))
_READER = Reader(Mirrors(are_read=True, cuts_prose=False, are_bounded=False), ControlMessage)
_WRITER.describe(*union_members(ControlMessage), is_tagged=True)


class _Envelope(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    schema_version: int
    message: msgspec.Raw


_ENVELOPES = msgspec.json.Decoder(_Envelope)


def encode_control(message: ControlMessage) -> bytes:
    """A message in its versioned envelope.

    Raises:
        ProtocolError: A value is not of its field's type, or has no JSON form.
    """
    try:
        body = _WRITER.encode_exactly(message, is_tagged=True)
    except (ProtocolError, UnicodeEncodeError):
        return json.dumps(encode_message(message), separators=(",", ":")).encode()
    return b'{"schema_version":%d,"message":%b}' % (SCHEMA_VERSION, body)


def decode_control(data: bytes) -> WireMessage:
    """The message in an envelope.

    Raises:
        ProtocolError: The envelope has another version, or the message does not fit its class.
    """
    try:
        envelope = _ENVELOPES.decode(data)
        if envelope.schema_version == SCHEMA_VERSION:
            return cast("WireMessage", _READER.decode(bytes(envelope.message)))
    except (msgspec.MsgspecError, UnicodeDecodeError, ProtocolError):
        pass  # The plain codec reads it, or says what is wrong.
    try:
        return decode_message(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"no JSON: {error}") from error
