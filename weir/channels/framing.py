"""Elements of many channels as bytes on one connection, and back.

A connection carries frames, each a header and a payload::

    magic  version  type  flags  attempt  channel  sequence  length  checksum  header checksum
    2      1        1     2      4        4        8         4       4         4          bytes

in network order. The header has a checksum of its own and the length is bounded, so that no memory
is allocated for a damaged or foreign header. Frames of a channel are numbered from 0; a number left
out or repeated ends the connection, as does another attempt's frame.

``FrameEncoder`` and ``FrameDecoder`` belong to one direction of one connection, ``ElementEncoder``
and ``ElementDecoder`` to one channel in it. An element is encoded when it is the next to be sent:
its frames have numbers then and cannot be overtaken any more.

Records travel as the columns or rows that they are. Columns are an Arrow IPC message, without the
schema, which is sent ahead in a frame of its own whenever it changes; rows are data as well
(``weir.common.row_codec``). Both follow a small head, the event times, and the watermarks between
the records: their number, their places, their times::

    count  flags  size   event times, if any   watermarks, if any   columns or rows
    4      4      8      8 x count             8 + 16 x number      (starts at a multiple of 8, as
                                                                     Arrow needs)

A batch beyond the bound of a frame travels as several frames, all but the last flagged ``MORE``,
and is decoded as one element again.

Checksums find damage, not forgery: that a frame comes from the peer that proved its identity is the
session's to ensure (``weir.channels.session``). Pickles run code when they are read, so a frame
carries some only if the job allows them.
"""

import json
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.channels.session import BytesLike
from weir.common.batch import Batch, Timestamps, concat
from weir.common.row_codec import ADVICE, decode_rows, encode_rows
from weir.common.typeinfo import TypeInformation, type_from_wire
from weir.common.watermarks import Watermarks
from weir.errors import ChannelError, ConfigError, ProtocolError, SchemaError
from weir.ids import AttemptNumber, ChannelId, CheckpointId
from weir.protocol.elements import (
    CancelCheckpoint,
    CheckpointBarrier,
    Element,
    EndOfInput,
    Records,
    Watermark,
    WatermarkIdle,
)
from weir.protocol.wire import from_wire, to_wire

MAGIC = b"WR"
VERSION = 3
CONNECTION = ChannelId(2**32 - 1)  # The channel of frames that concern the connection itself.
BARRIERS_MAX = 64  # Remembered in their wire form: one barrier passes by every channel.
FRAME_OVERHEAD_MAX = 64 << 10  # Beyond ``frame_bytes_max``: Arrow's metadata of a wide batch.

_MORE = 1  # The batch continues in the channel's next frame.
_STREAM = 2  # The columns are an IPC stream of their own, as dictionaries need it.

_HEADER = struct.Struct("!2sBBHIIQII")
_CHECKSUM = struct.Struct("!I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size

_RECORDS_HEAD = struct.Struct("!IIQ")
_HAS_TIMESTAMPS = 1
_HAS_WATERMARKS = 2
_INT64 = struct.Struct("!q")
_UINT64 = struct.Struct("!Q")
_UINT32 = struct.Struct("!I")


class FrameType(IntEnum):
    """The contents of a frame."""

    HELLO = 1  # Of the connection; the payload is the caller's.
    SCHEMA = 2  # Type and Arrow schema of the batches that follow on the channel.
    ARROW = 3
    OBJECT = 4
    WATERMARK = 5
    WATERMARK_IDLE = 6
    BARRIER = 7
    CANCEL = 8
    END_OF_INPUT = 9
    CREDIT = 10  # From the receiver of the channel to its sender.


_TYPES = {int(type): type for type in FrameType}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that passed all checks of its header and checksum."""

    type: FrameType
    channel: ChannelId
    flags: int
    payload: memoryview  # Read-only, and owned by the frame.


class FrameEncoder:
    """Encodes the frames of one direction of one connection, with numbers and checksums."""

    def __init__(self, attempt: AttemptNumber, frame_bytes_max: int) -> None:
        self._attempt = attempt
        self._next_sequence: dict[ChannelId, int] = {}
        self.frame_bytes_max = frame_bytes_max

    def encode(
        self, type: FrameType, channel: ChannelId, payload: Sequence[BytesLike] = (), flags: int = 0
    ) -> list[BytesLike]:
        """The frame as buffers for ``sendmsg``, in order; the payload's own are not copied.

        Raises:
            ConfigError: The payload is too long for a frame.
        """
        parts = [part for part in payload if len(part)]
        length, checksum = 0, 0
        for part in parts:
            length += len(part)
            checksum = zlib.crc32(part, checksum)
        if length > payload_bytes_max(self.frame_bytes_max):
            raise _too_long(length, self.frame_bytes_max)
        sequence = self._next_sequence.get(channel, 0)
        self._next_sequence[channel] = sequence + 1
        header = _HEADER.pack(
            MAGIC, VERSION, type, flags, self._attempt, channel, sequence, length, checksum
        )
        return [header + _CHECKSUM.pack(zlib.crc32(header)), *parts]

    def encode_small(
        self, type: FrameType, channel: ChannelId, payload: bytes = b""
    ) -> list[BytesLike]:
        """A frame of few bytes as one buffer: the copy costs less than another buffer would."""
        return [b"".join(self.encode(type, channel, [payload]))]

    def hello(self, payload: bytes) -> list[BytesLike]:
        """A frame about the connection, with a payload that the caller's peer understands."""
        return self.encode_small(FrameType.HELLO, CONNECTION, payload)

    def credit(self, channel: ChannelId, granted_bytes: int) -> list[BytesLike]:
        """Allow the sender of ``channel`` this many bytes more."""
        return self.encode_small(FrameType.CREDIT, channel, _UINT64.pack(granted_bytes))


class FrameDecoder:
    """Decodes received bytes, in pieces of any size, into checked frames.

    After a ``ChannelError`` the position in the stream is unknown: close the connection.
    """

    def __init__(self, attempt: AttemptNumber, frame_bytes_max: int) -> None:
        self._attempt = attempt
        self._frame_bytes_max = frame_bytes_max
        self._next_sequence: dict[ChannelId, int] = {}
        self._header = bytearray()
        self._payload: bytearray | None = None  # Allocated once its header is checked.
        self._filled = 0
        self._type = FrameType.HELLO
        self._channel = CONNECTION
        self._flags = 0
        self._checksum = 0

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and not ended: a connection that closes now was cut."""
        return bool(self._header)

    def feed(self, data: BytesLike) -> list[Frame]:
        """The frames that ``data`` completes; ``data`` may be used again afterwards.

        Raises:
            ChannelError: The bytes are damaged, foreign, too many, out of sequence or of another
                attempt.
        """
        frames: list[Frame] = []
        view, position = memoryview(data), 0
        if not self._header:
            position = self._read_whole(view, frames)
        while position < len(view) or self._payload is not None:
            if self._payload is None:
                taken = view[position : position + HEADER_BYTES - len(self._header)]
                self._header += taken
                position += len(taken)
                if len(self._header) < HEADER_BYTES:
                    break
                self._payload = bytearray(self._read_header(memoryview(self._header)))
                self._filled = 0
            missing = len(self._payload) - self._filled
            taken = view[position : position + missing]
            self._payload[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            position += len(taken)
            if len(taken) < missing:
                break
            frames.append(self._finish(self._payload))
        return frames

    def _read_whole(self, view: memoryview, frames: list[Frame]) -> int:
        """Read the frames that lie whole in ``view``, as small ones do; the place behind them."""
        position, end = 0, len(view)
        while (start := position + HEADER_BYTES) <= end:
            length = self._read_header(view[position:start])
            stop = start + length
            if stop > end:
                self._header += view[position:start]
                self._payload = bytearray(length)
                self._filled = 0
                return start
            payload = bytes(view[start:stop])
            self._check(payload)
            frames.append(Frame(self._type, self._channel, self._flags, memoryview(payload)))
            position = stop
        return position

    def _read_header(self, header: memoryview) -> int:
        (sealed,) = _CHECKSUM.unpack_from(header, _HEADER.size)
        magic, version, kind, flags, attempt, channel, sequence, length, checksum = (
            _HEADER.unpack_from(header)
        )
        if magic != MAGIC:
            raise ChannelError("the peer sent bytes that are no frame")
        if sealed != zlib.crc32(header[: _HEADER.size]):
            raise ChannelError(f"a frame header that names channel {channel} is damaged")
        if version != VERSION:
            raise ChannelError(
                f"channel {channel}: the peer sends frame version {version}, this side reads "
                f"{VERSION}; run the same version of Weir everywhere"
            )
        if attempt != self._attempt:
            raise ChannelError(
                f"channel {channel}: a frame of attempt {attempt} came in attempt {self._attempt}"
            )
        if length > (bound := payload_bytes_max(self._frame_bytes_max)):
            raise ChannelError(f"channel {channel}: a frame of {length} bytes, over {bound}")
        if sequence != (expected := self._next_sequence.get(channel, 0)):
            raise ChannelError(f"channel {channel}: frame {sequence} came in place of {expected}")
        if (type := _TYPES.get(kind)) is None:
            raise ChannelError(f"channel {channel}: unknown frame type {kind}")
        self._type = type
        self._next_sequence[channel] = sequence + 1
        self._channel, self._flags, self._checksum = channel, flags, checksum
        return int(length)

    def _check(self, payload: BytesLike) -> None:
        if zlib.crc32(payload) != self._checksum:
            raise ChannelError(
                f"channel {self._channel}: a frame of type {self._type.name} is damaged"
            )

    def _finish(self, payload: bytearray) -> Frame:
        self._check(payload)
        self._header.clear()
        self._payload = None
        return Frame(self._type, self._channel, self._flags, memoryview(payload).toreadonly())


class ElementEncoder:
    """Encodes the elements of one channel as frames."""

    def __init__(self, channel: ChannelId, frames: FrameEncoder, *, pickles: bool = False) -> None:
        """Prepare; ``pickles``: whether the job allows records that are pickled."""
        self._channel = channel
        self._frames = frames
        self._pickles = pickles
        self._schema: bytes | None = None  # The schema that was sent last.
        self._type: TypeInformation | None = None
        self._columns_schema: pa.Schema | None = None
        self._flagged: tuple[pa.Schema, int] | None = None

    def encode(self, element: Element) -> list[BytesLike]:
        """The frames of the element, as buffers for ``sendmsg``.

        Raises:
            ConfigError: One record alone is too large for a frame.
            SchemaError: A record is no data, and the job allows no pickles.
        """
        match element:
            case Records():
                return self._encode_records(element)
            case CheckpointBarrier():
                return self._frame(FrameType.BARRIER, _barrier_to_bytes(element))
            case CancelCheckpoint(checkpoint_id):
                return self._frame(FrameType.CANCEL, _UINT64.pack(checkpoint_id))
            case Watermark(timestamp_ms):
                return self._frame(FrameType.WATERMARK, _INT64.pack(timestamp_ms))
            case WatermarkIdle():
                return self._frame(FrameType.WATERMARK_IDLE)
            case EndOfInput():
                return self._frame(FrameType.END_OF_INPUT)

    def _frame(self, type: FrameType, payload: bytes = b"") -> list[BytesLike]:
        return self._frames.encode_small(type, self._channel, payload)

    def _encode_records(self, records: Records) -> list[BytesLike]:
        batch: Batch = records.payload
        kind, flags = FrameType.OBJECT, 0
        if batch.is_columnar:
            if batch.type is not None and batch.type.has_pickles and not self._pickles:
                raise SchemaError(f"records of type {batch.type} hold pickles; {ADVICE}")
            kind = FrameType.ARROW
            flags = self._flags_of(batch.columns.schema)
        # Every part states the size of the whole: credit counts elements, not frames.
        *firsts, last = self._parts(batch, flags, records.size)
        buffers = self._encode_schema(batch)
        for part in firsts:
            buffers += self._frames.encode(kind, self._channel, part, flags | _MORE)
        return buffers + self._frames.encode(kind, self._channel, last, flags)

    def _flags_of(self, schema: pa.Schema) -> int:
        """The flags of columns with this schema, mostly that of those before them."""
        if self._flagged is None or schema != self._flagged[0]:
            self._flagged = schema, _STREAM if _has_dictionaries(schema) else 0
        return self._flagged[1]

    def _encode_schema(self, batch: Batch) -> list[BytesLike]:
        columns_schema = batch.columns.schema if batch.is_columnar else self._columns_schema
        if self._schema is not None and batch.type is self._type:
            same = columns_schema is self._columns_schema
            if same or (columns_schema is not None and columns_schema == self._columns_schema):
                return []
        self._type, self._columns_schema = batch.type, columns_schema
        schema = _schema_to_bytes(batch.type, columns_schema)
        if schema == self._schema:
            return []
        self._schema = schema
        return self._frame(FrameType.SCHEMA, schema)

    def _parts(self, batch: Batch, flags: int, size: int) -> list[list[BytesLike]]:
        frame_bytes_max = self._frames.frame_bytes_max
        parts: list[list[BytesLike]] = []
        # The operator that made the batch bounded its rows by an estimate; here their true size is
        # known.
        pieces = split_to_frames(batch, frame_bytes_max) if batch.is_columnar else [batch]
        waiting = deque(pieces)
        while waiting:
            piece = waiting.popleft()
            payload = _records_to_bytes(piece, flags, size, pickles=self._pickles)
            if (length := sum(map(len, payload))) <= payload_bytes_max(frame_bytes_max):
                parts.append(payload)
            elif len(piece) > 1:
                middle = len(piece) // 2
                waiting.extendleft([piece.slice(middle, len(piece)), piece.slice(0, middle)])
            else:
                raise _too_long(length, frame_bytes_max)
        return parts


class ElementDecoder:
    """Decodes the frames of one channel into elements."""

    def __init__(self, channel: ChannelId, *, pickles: bool = False) -> None:
        """Prepare; ``pickles``: whether the job allows records that are pickled."""
        self._channel = channel
        self._pickles = pickles
        self._type: TypeInformation | None = None
        self._schema: pa.Schema | None = None
        self._parts: list[Batch] = []  # Of a batch whose last frame is yet to come.

    def decode(self, frame: Frame) -> Element | None:
        """The element that the frame completes; None where further frames of it follow.

        Raises:
            ChannelError: No correct sender sends this frame on this channel.
        """
        try:
            return self._decode(frame)
        except (struct.error, ValueError, OSError, pa.ArrowException, ProtocolError) as error:
            raise self._refused(
                f"a frame of type {frame.type.name} cannot be read: {error}"
            ) from error

    def _decode(self, frame: Frame) -> Element | None:
        payload = frame.payload
        records = frame.type in (FrameType.ARROW, FrameType.OBJECT)
        if self._parts and not records:
            raise self._refused(f"a frame of type {frame.type.name} came within a batch")
        match frame.type:
            case FrameType.ARROW | FrameType.OBJECT:
                return self._decode_records(frame)
            case FrameType.SCHEMA:
                self._type, self._schema = _schema_from_bytes(payload)
                return None
            case FrameType.WATERMARK:
                return Watermark(*_INT64.unpack(payload))
            case FrameType.WATERMARK_IDLE:
                return WatermarkIdle()
            case FrameType.BARRIER:
                return _barrier_from_bytes(bytes(payload))
            case FrameType.CANCEL:
                (checkpoint_id,) = _UINT64.unpack(payload)
                return CancelCheckpoint(CheckpointId(checkpoint_id))
            case FrameType.END_OF_INPUT:
                return EndOfInput()
            case FrameType.HELLO | FrameType.CREDIT:
                raise self._refused(f"a frame of type {frame.type.name} is no element")

    def _decode_records(self, frame: Frame) -> Records | None:
        count, flags, size = _RECORDS_HEAD.unpack_from(frame.payload)
        rest = frame.payload[_RECORDS_HEAD.size :]
        timestamps: Timestamps | None = None
        if flags & _HAS_TIMESTAMPS:
            timestamps = np.frombuffer(rest, "<i8", count)
            rest = rest[timestamps.nbytes :]
        watermarks: Watermarks | None = None
        if flags & _HAS_WATERMARKS:
            watermarks, rest = self._read_watermarks(rest, count)
        if frame.type is FrameType.ARROW:
            if self._type is not None and self._type.has_pickles and not self._pickles:
                raise self._refused(f"columns of type {self._type} hold pickles, which run code")
            columns = self._read_columns(rest, frame.flags)
            batch = Batch.of_columns(columns, self._type, timestamps, watermarks)
        else:
            rows = decode_rows(rest, pickles=self._pickles)
            batch = Batch.of_rows(rows, self._type, timestamps, watermarks)
        if len(batch) != count:
            raise self._refused(f"a batch of {len(batch)} records announced {count}")
        self._parts.append(batch)
        if frame.flags & _MORE:
            return None
        parts, self._parts = self._parts, []
        whole = parts[0] if len(parts) == 1 else concat(parts)
        if whole.is_columnar:
            whole.know_size(size)
        return Records(whole, len(whole), size)

    def _read_watermarks(self, data: memoryview, count: int) -> tuple[Watermarks, memoryview]:
        """The watermarks between ``count`` records, and the data behind them."""
        (number,) = _UINT64.unpack_from(data)
        if number > count + 1:
            raise self._refused(f"a batch of {count} records announced {number} watermarks")
        values = np.frombuffer(data[_UINT64.size :], "<i8", 2 * number)
        behind, times_ms = np.split(values, 2)
        in_order = (np.diff(behind) > 0).all() and (times_ms[1:] >= times_ms[:-1]).all()
        if not (number and behind[0] >= 0 and behind[-1] <= count and in_order):
            raise self._refused("the watermarks of a batch are out of order")
        return Watermarks(behind, times_ms), data[_UINT64.size + values.nbytes :]

    def _read_columns(self, data: memoryview, flags: int) -> pa.RecordBatch:
        buffer = pa.py_buffer(data)
        if flags & _STREAM:
            columns, *more = pa.ipc.open_stream(buffer)
            if more:
                raise self._refused("a frame holds more than one batch")
        elif self._schema is None:
            raise self._refused("columns came before their schema")
        else:
            columns = pa.ipc.read_record_batch(buffer, self._schema)
        columns.validate()
        return columns

    def _refused(self, what: str) -> ChannelError:
        return ChannelError(f"channel {self._channel}: {what}")


def granted_bytes(frame: Frame) -> int:
    """The bytes that a ``CREDIT`` frame grants to the sender of its channel.

    Raises:
        ChannelError: The frame is damaged in a way that its checksum does not show.
    """
    if frame.type is not FrameType.CREDIT or len(frame.payload) != _UINT64.size:
        raise ChannelError(
            f"channel {frame.channel}: a frame of type {frame.type.name} grants no credit"
        )
    return int(_UINT64.unpack(frame.payload)[0])


def split_to_frames(batch: Batch, max_bytes: int) -> list[Batch]:
    """The batch in pieces that each fit into a frame; a single record is never split.

    Shape: n records -> at least one batch, n records in all, order kept.

    Exact for columns; an estimate for rows, which ``ElementEncoder`` corrects.
    """
    pieces: list[Batch] = []
    waiting = deque([batch])
    while waiting:
        piece = waiting.popleft()
        share = -(-_framed_bytes(piece) // max_bytes)
        if share <= 1 or len(piece) <= 1:
            pieces.append(piece)
            continue
        step = -(-len(piece) // min(share, len(piece)))
        cuts = range(0, len(piece), step)
        waiting.extendleft(
            piece.slice(start, min(start + step, len(piece))) for start in reversed(cuts)
        )
    return pieces


def payload_bytes_max(frame_bytes_max: int) -> int:
    """The longest payload that either side of a connection accepts."""
    return frame_bytes_max + FRAME_OVERHEAD_MAX


def _framed_bytes(batch: Batch) -> int:
    size = pa.ipc.get_record_batch_size(batch.columns) if batch.is_columnar else batch.size
    times = 0 if batch.timestamps is None else 8 * len(batch)
    marks = 0 if batch.watermarks is None else 8 + 16 * len(batch.watermarks.behind)
    return int(size) + times + marks + _RECORDS_HEAD.size


def _records_to_bytes(batch: Batch, flags: int, size: int, *, pickles: bool) -> list[BytesLike]:
    timestamps, watermarks = batch.timestamps, batch.watermarks
    has = 0 if timestamps is None else _HAS_TIMESTAMPS
    has |= 0 if watermarks is None else _HAS_WATERMARKS
    payload: list[BytesLike] = [_RECORDS_HEAD.pack(len(batch), has, size)]
    if timestamps is not None:
        payload.append(_ints_to_bytes(timestamps))
    if watermarks is not None:
        payload.append(_UINT64.pack(len(watermarks.behind)))
        payload += [_ints_to_bytes(watermarks.behind), _ints_to_bytes(watermarks.times_ms)]
    if not batch.is_columnar:
        payload.append(encode_rows(batch.rows, pickles=pickles))
    elif flags & _STREAM:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.columns.schema) as writer:
            writer.write_batch(batch.columns)
        payload.append(memoryview(sink.getvalue()))
    else:
        payload.append(memoryview(batch.columns.serialize()))
    return payload


def _ints_to_bytes(values: npt.NDArray[np.int64]) -> memoryview:
    return np.ascontiguousarray(values, "<i8").view(np.uint8).data


@lru_cache(BARRIERS_MAX)
def _barrier_to_bytes(barrier: CheckpointBarrier) -> bytes:
    return json.dumps(to_wire(barrier)).encode()


@lru_cache(BARRIERS_MAX)
def _barrier_from_bytes(data: bytes) -> CheckpointBarrier:
    return from_wire(CheckpointBarrier, json.loads(data))


def _schema_to_bytes(type: TypeInformation | None, schema: pa.Schema | None) -> bytes:
    described = b"" if type is None else json.dumps(type.to_wire()).encode()
    columns = b"" if schema is None else schema.serialize().to_pybytes()
    return _UINT32.pack(len(described)) + described + columns


def _schema_from_bytes(payload: memoryview) -> tuple[TypeInformation | None, pa.Schema | None]:
    (length,) = _UINT32.unpack_from(payload)
    described, columns = payload[_UINT32.size :][:length], payload[_UINT32.size :][length:]
    type = type_from_wire(json.loads(bytes(described))) if length else None
    return type, pa.ipc.read_schema(pa.py_buffer(columns)) if len(columns) else None


def _has_dictionaries(schema: pa.Schema) -> bool:
    return any(_is_dictionary(field.type) for field in schema)


def _is_dictionary(type: pa.DataType) -> bool:
    if isinstance(type, pa.BaseExtensionType):
        type = type.storage_type
    inner = (type.field(index).type for index in range(type.num_fields))
    return pa.types.is_dictionary(type) or any(map(_is_dictionary, inner))


def _too_long(length: int, frame_bytes_max: int) -> ConfigError:
    return ConfigError(
        f"a record takes {length} bytes on the wire and a frame at most {frame_bytes_max}; raise "
        "ChannelConfig.frame_bytes_max, or keep large values outside of the records"
    )
