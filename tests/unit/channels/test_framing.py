"""Frames: what was sent comes out, in whichever pieces it came, and nothing else does."""

import pickle
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.channels.framing import (
    CONNECTION,
    FRAME_OVERHEAD_MAX,
    HEADER_BYTES,
    VERSION,
    BytesLike,
    ElementDecoder,
    ElementEncoder,
    Frame,
    FrameDecoder,
    FrameEncoder,
    FrameType,
    granted_bytes,
    split_to_frames,
)
from weir.common.batch import Batch
from weir.common.typeinfo import Types
from weir.common.watermarks import Watermarks
from weir.errors import ChannelError, ConfigError, SchemaError
from weir.ids import AttemptNumber, ChannelId, CheckpointId
from weir.protocol.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    Alignment,
    BarrierOptions,
    CancelCheckpoint,
    CheckpointBarrier,
    CheckpointKind,
    Element,
    EndOfInput,
    Records,
    Watermark,
    WatermarkIdle,
)

ATTEMPT = AttemptNumber(3)
CHANNEL = ChannelId(7)
FRAME_BYTES_MAX = 1 << 20


def encoder(
    channel: ChannelId = CHANNEL, frame_bytes_max: int = FRAME_BYTES_MAX, *, pickles: bool = False
) -> ElementEncoder:
    return ElementEncoder(channel, FrameEncoder(ATTEMPT, frame_bytes_max), pickles=pickles)


def frame_decoder(frame_bytes_max: int = FRAME_BYTES_MAX) -> FrameDecoder:
    return FrameDecoder(ATTEMPT, frame_bytes_max)


def joined(buffers: Iterable[BytesLike]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def decoded(frames: Iterable[Frame]) -> list[Element]:
    elements = ElementDecoder(CHANNEL)
    return [element for frame in frames if (element := elements.decode(frame)) is not None]


def there_and_back(*sent: Element, frame_bytes_max: int = FRAME_BYTES_MAX) -> list[Element]:
    elements = encoder(frame_bytes_max=frame_bytes_max)
    data = joined(buffer for element in sent for buffer in elements.encode(element))
    return decoded(frame_decoder(frame_bytes_max).feed(data))


def of_rows(rows: list[Any], times: list[int] | None = None, type: Any = None) -> Records:
    timestamps = None if times is None else np.array(times, np.int64)
    return Records(Batch.of_rows(rows, type, timestamps), len(rows), 100)


def of_columns(columns: pa.RecordBatch, times: list[int] | None = None) -> Records:
    timestamps = None if times is None else np.array(times, np.int64)
    return Records(Batch.of_columns(columns, None, timestamps), columns.num_rows, 200)


def marked(element: Records, *marks: tuple[int, int]) -> Records:
    """The same with watermarks: places and times."""
    places, times = zip(*marks, strict=True)
    batch: Batch = element.payload
    watermarks = Watermarks(np.array(places), np.array(times))
    return replace(element, payload=batch.marked(watermarks))


def plain(element: Element) -> object:
    """An element as something that compares by value."""
    if not isinstance(element, Records):
        return element
    batch: Batch = element.payload
    times = None if batch.timestamps is None else batch.timestamps.tolist()
    face = batch.columns if batch.is_columnar else batch.rows
    places = None
    if batch.watermarks is not None:
        places = batch.watermarks.behind.tolist(), batch.watermarks.times_ms.tolist()
    return element.count, element.size, str(batch.type), times, places, face


TABLE = pa.record_batch(
    {
        "n": pa.array([1, None, 3], pa.int64()),
        "text": ["a", "bé", None],
        "list": [[1.5], [], None],
        "when": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
    }
)
DICTIONARIES = pa.record_batch(
    {
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "nested": pa.array(
            [["p"], ["q", "p"], []], pa.list_(pa.dictionary(pa.int32(), pa.string()))
        ),
    }
)
CONTROL: list[Element] = [
    CheckpointBarrier(CheckpointId(2**63), 1_700_000_000_000),
    CheckpointBarrier(
        CheckpointId(2),
        5,
        BarrierOptions(CheckpointKind.STOP_DRAIN, Alignment.UNALIGNED, alignment_timeout_ms=30),
    ),
    CheckpointBarrier(
        CheckpointId(8),
        1_700_000_000_000,
        BarrierOptions(CheckpointKind.SAVEPOINT, target="file:///savepoints/vor dem Umbau"),
    ),
    CancelCheckpoint(CheckpointId(9)),
    Watermark(MIN_WATERMARK_MS),
    Watermark(MAX_WATERMARK_MS),
    WatermarkIdle(),
    EndOfInput(),
]
BATCHES: list[Element] = [
    of_rows([1, "two", (3.0, None), {"four": b"4"}]),
    of_rows([1, 2], times=[-5, 2**62], type=Types.LONG()),
    of_rows([], times=[]),
    of_columns(TABLE),
    of_columns(TABLE.slice(1, 2), times=[4, 5]),
    of_columns(TABLE.slice(0, 0), times=[]),
    of_columns(TABLE.select(["n"])),
    of_columns(DICTIONARIES, times=[1, 2, 3]),
    of_columns(DICTIONARIES.slice(1, 1)),
    marked(of_rows([1, 2], times=[-5, 2**62], type=Types.LONG()), (0, -(2**63)), (2, 2**63 - 1)),
    marked(of_columns(TABLE), (1, 7)),
    marked(of_columns(DICTIONARIES, times=[1, 2, 3]), (0, 1), (1, 2), (2, 2), (3, 4)),
]


# Round trips -------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(CONTROL + BATCHES), max_size=12),
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
)
def test_elements_survive_any_split_of_the_stream(sent: list[Element], sizes: list[int]) -> None:
    elements, frames, received = encoder(), frame_decoder(), ElementDecoder(CHANNEL)
    data = joined(buffer for element in sent for buffer in elements.encode(element))
    got: list[Element] = []
    while data:
        for size in sizes:
            piece, data = data[:size], data[size:]
            for frame in frames.feed(piece):
                if (element := received.decode(frame)) is not None:
                    got.append(element)
    assert [plain(element) for element in got] == [plain(element) for element in sent]
    assert not frames.in_frame


def test_a_buffer_that_was_fed_may_be_used_again() -> None:
    received = bytearray(joined(encoder().encode(of_columns(TABLE))))
    frames = frame_decoder().feed(received)
    received[:] = bytes(len(received))
    (element,) = decoded(frames)
    assert plain(element) == plain(of_columns(TABLE))


def test_the_schema_goes_ahead_only_when_it_changes() -> None:
    elements = encoder()
    sent = [of_columns(TABLE), of_columns(TABLE), of_rows([1]), of_columns(TABLE.select(["n"]))]
    data = joined(buffer for element in sent for buffer in elements.encode(element))
    kinds = [frame.type for frame in frame_decoder().feed(data)]
    schema, arrow, rows = FrameType.SCHEMA, FrameType.ARROW, FrameType.OBJECT
    assert kinds == [schema, arrow, arrow, rows, schema, arrow]


def test_the_type_of_rows_is_known_to_the_receiver() -> None:
    row_type = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
    first, second = there_and_back(of_rows([1], type=row_type), of_rows([2], type=row_type))
    assert isinstance(first, Records)
    assert isinstance(second, Records)
    assert first.payload.type == row_type
    assert second.payload.type is first.payload.type  # So that the two can be joined.


class Local:
    """A class of a user's script, say."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_an_object_travels_only_where_the_job_allows_pickles() -> None:
    with pytest.raises(SchemaError, match=r"declare output_type.*--allow-pickled-state"):
        encoder().encode(of_rows([Local(5)]))
    data = joined(encoder(pickles=True).encode(of_rows([Local(5)])))
    schema, rows = frame_decoder().feed(data)
    allowed = ElementDecoder(CHANNEL, pickles=True)
    allowed.decode(schema)
    received = allowed.decode(rows)
    assert isinstance(received, Records)
    assert received.payload.rows[0].value == 5
    with pytest.raises(SchemaError, match="came as pickles"):
        ElementDecoder(CHANNEL).decode(rows)


def test_a_class_of_the_script_is_sent_by_value() -> None:
    class Inner:
        value = 6

    received = ElementDecoder(CHANNEL, pickles=True)
    data = joined(encoder(pickles=True).encode(of_rows([Inner()])))
    *_, element = [received.decode(frame) for frame in frame_decoder().feed(data)]
    assert isinstance(element, Records)
    assert element.payload.rows[0].value == 6


class Attack:
    """A pickle that runs code where it is read."""

    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Attack, "ran", True)


def test_pickles_in_a_column_are_refused_by_both_ends() -> None:
    """A declared type of pickles made the receiver read them, from any sender."""
    kind = Types.PICKLED_BYTE_ARRAY()
    columns = pa.record_batch({"value": pa.array([pickle.dumps(Attack())], pa.binary())})
    forged = Records(Batch.of_columns(columns, kind), 1, 100)
    with pytest.raises(SchemaError, match="hold pickles"):
        encoder().encode(forged)
    data = joined(encoder(pickles=True).encode(forged))
    schema, arrow = frame_decoder().feed(data)
    received = ElementDecoder(CHANNEL)
    received.decode(schema)
    with pytest.raises(ChannelError, match="hold pickles, which run code"):
        received.decode(arrow)
    assert not Attack.ran
    allowed = ElementDecoder(CHANNEL, pickles=True)
    allowed.decode(schema)
    element = allowed.decode(arrow)
    assert isinstance(element, Records)
    assert element.payload.rows
    assert Attack.ran  # The occasion arose.


def test_a_record_that_cannot_be_pickled_is_the_users_to_repair() -> None:
    with pytest.raises(SchemaError, match="cannot be sent to another process"):
        encoder(pickles=True).encode(of_rows([threading.Lock()]))
    lock = threading.Lock()
    with pytest.raises(SchemaError, match="output_type"):
        encoder(pickles=True).encode(of_rows([lambda: lock]))


class Unreadable:
    """Pickles, and raises when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_a_record_that_cannot_be_read_back_is_the_users_to_repair() -> None:
    data = joined(encoder(pickles=True).encode(of_rows([Unreadable()])))
    _, rows = frame_decoder().feed(data)
    with pytest.raises(SchemaError, match="cannot be read there"):
        ElementDecoder(CHANNEL, pickles=True).decode(rows)


def test_channels_share_a_connection_with_numbers_of_their_own() -> None:
    frames = FrameEncoder(ATTEMPT, FRAME_BYTES_MAX)
    one, other = ElementEncoder(ChannelId(1), frames), ElementEncoder(ChannelId(2), frames)
    data = joined(
        [
            *frames.hello(b"slot-1"),
            *one.encode(Watermark(1)),
            *other.encode(Watermark(2)),
            *frames.credit(ChannelId(9), 2**40),
            *one.encode(Watermark(3)),
        ]
    )
    hello, first, second, credit, third = frame_decoder().feed(data)
    assert (hello.type, hello.channel, bytes(hello.payload)) == (
        FrameType.HELLO,
        CONNECTION,
        b"slot-1",
    )
    assert [first.channel, second.channel, third.channel] == [1, 2, 1]
    assert (credit.channel, granted_bytes(credit)) == (9, 2**40)
    with pytest.raises(ChannelError, match="grants no credit"):
        granted_bytes(first)


def test_columns_are_not_copied_into_the_frame() -> None:
    buffers = encoder().encode(of_columns(TABLE))
    assert isinstance(buffers[-1], memoryview)
    assert isinstance(buffers[-1].obj, pa.Buffer)


# Large batches -----------------------------------------------------------------------------------


@given(
    st.integers(0, 400),
    st.integers(300, 2_000),
    st.booleans(),
    st.booleans(),
)
def test_large_batches_are_split_and_keep_their_records_in_order(
    count: int, max_bytes: int, columnar: bool, timed: bool
) -> None:
    times = np.arange(count, dtype=np.int64) if timed else None
    numbers = list(range(count))
    batch = Batch.of_rows(numbers, None, times)
    if columnar:
        batch = Batch.of_columns(pa.record_batch({"n": numbers}), None, times)
    pieces = split_to_frames(batch, max_bytes)
    assert [record for piece in pieces for record in piece.rows] == batch.rows
    if timed:
        assert [t for piece in pieces for t in piece.timestamps.tolist()] == numbers
    if columnar:
        longest = max(pa.ipc.get_record_batch_size(piece.columns) for piece in pieces)
        assert longest <= max_bytes or max(map(len, pieces)) == 1


def test_a_batch_over_several_frames_comes_out_as_one_element() -> None:
    """Two rows in the middle are much larger than those the estimate looked at."""
    bound = 1_000
    rows = ["x"] * 100 + ["y" * FRAME_OVERHEAD_MAX, "z" * FRAME_OVERHEAD_MAX] + ["x"] * 100
    sent = of_rows(rows, times=list(range(len(rows))))
    data = joined(encoder(frame_bytes_max=bound).encode(sent))
    frames = frame_decoder(bound).feed(data)
    assert len([frame for frame in frames if frame.type is FrameType.OBJECT]) > 1
    assert [plain(element) for element in decoded(frames)] == [plain(sent)]


def test_columns_over_several_frames_come_out_as_one_element() -> None:
    sent = of_columns(pa.record_batch({"n": list(range(50_000))}))
    received = there_and_back(sent, Watermark(1), frame_bytes_max=1_000)
    assert [plain(element) for element in received] == [plain(sent), Watermark(1)]


def test_a_record_larger_than_a_frame_says_which_setting_helps() -> None:
    huge = "x" * (FRAME_OVERHEAD_MAX + 2_000)
    for sent in (of_rows(["a", huge]), of_columns(pa.record_batch({"s": ["a", huge]}))):
        with pytest.raises(ConfigError, match=r"raise ChannelConfig\.frame_bytes_max"):
            encoder(frame_bytes_max=1_000).encode(sent)


def test_a_batch_that_breaks_off_is_refused() -> None:
    bound = 1_000
    elements = encoder(frame_bytes_max=bound)
    data = joined(elements.encode(of_columns(pa.record_batch({"n": list(range(50_000))}))))
    schema, first, *_ = frame_decoder(bound).feed(data)
    watermark = Frame(FrameType.WATERMARK, CHANNEL, 0, memoryview(bytes(8)))
    with pytest.raises(
        ChannelError, match="channel 7: a frame of type WATERMARK came within a batch"
    ):
        decoded([schema, first, watermark])


# What is refused ---------------------------------------------------------------------------------

GOOD = joined([*(elements := encoder()).encode(of_columns(TABLE)), *elements.encode(CONTROL[0])])


def sealed(
    magic: bytes = b"WR",
    version: int = VERSION,
    kind: int = 6,
    attempt: int = ATTEMPT,
    sequence: int = 0,
    length: int = 0,
) -> bytes:
    """A header whose own checksum is right."""
    header = struct.pack(
        "!2sBBHIIQII", magic, version, kind, 0, attempt, CHANNEL, sequence, length, 0
    )
    return header + struct.pack("!I", zlib.crc32(header))


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(at: int, change: int) -> None:
    damaged = bytearray(GOOD)
    damaged[at] ^= change
    with pytest.raises(ChannelError):
        frame_decoder().feed(damaged)


def test_a_damaged_payload_names_its_channel() -> None:
    damaged = bytearray(GOOD)
    damaged[HEADER_BYTES] ^= 1
    with pytest.raises(ChannelError, match="channel 7: a frame of type SCHEMA is damaged"):
        frame_decoder().feed(damaged)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (sealed(magic=b"GE"), "no frame"),
        (sealed(version=1), "channel 7: the peer sends frame version 1"),
        (sealed(kind=99), "channel 7: unknown frame type 99"),
        (sealed(attempt=2), "channel 7: a frame of attempt 2 came in attempt 3"),
        (sealed(sequence=1), "channel 7: frame 1 came in place of 0"),
        (sealed() + sealed(), "channel 7: frame 0 came in place of 1"),
        (sealed() + sealed(sequence=2), "channel 7: frame 2 came in place of 1"),
    ],
)
def test_a_frame_that_does_not_belong_here_is_refused(header: bytes, problem: str) -> None:
    with pytest.raises(ChannelError, match=problem):
        frame_decoder().feed(header)


def test_an_oversized_frame_is_refused_before_anything_is_allocated() -> None:
    decoder = frame_decoder()
    tracemalloc.start()
    try:
        with pytest.raises(ChannelError, match="channel 7: a frame of 4294967295 bytes, over"):
            decoder.feed(sealed(length=2**32 - 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < FRAME_BYTES_MAX


def test_a_frame_of_the_greatest_length_is_taken() -> None:
    frames = FrameEncoder(ATTEMPT, 1_000)
    greatest = bytes(1_000 + FRAME_OVERHEAD_MAX)
    data = joined(frames.encode(FrameType.HELLO, CONNECTION, [greatest]))
    (frame,) = frame_decoder(1_000).feed(data)
    assert frame.payload == greatest
    with pytest.raises(ConfigError):
        frames.encode(FrameType.HELLO, CONNECTION, [greatest, b"+"])
    with pytest.raises(ChannelError, match=f"a frame of {len(greatest) + 1} bytes, over"):
        frame_decoder(1_000).feed(sealed(length=len(greatest) + 1))


def test_a_connection_that_ends_within_a_frame_is_seen_to() -> None:
    decoder = frame_decoder()
    decoder.feed(GOOD[:-1])
    assert decoder.in_frame


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        (FrameType.WATERMARK, b"short"),
        (FrameType.CANCEL, b""),
        (FrameType.BARRIER, b"{"),
        (FrameType.BARRIER, b'{"checkpoint_id": "one", "triggered_at_ms": 0}'),
        (FrameType.ARROW, b""),
        (FrameType.ARROW, struct.pack("!IIQ", 1, 0, 0) + b"no arrow"),
        (FrameType.OBJECT, struct.pack("!IIQ", 5, 1, 0) + bytes(16)),
        (FrameType.OBJECT, struct.pack("!IIQ", 2, 0, 0) + b"]\x94."),
        (FrameType.OBJECT, struct.pack("!IIQ", 0, 0, 0) + b"N."),
        (FrameType.OBJECT, struct.pack("!IIQQ", 1, 2, 0, 2**63) + bytes(16)),
        (FrameType.OBJECT, struct.pack("!IIQQ", 1, 2, 0, 1) + bytes(8)),
        (FrameType.SCHEMA, b"\0\0\0\0no schema"),
        (FrameType.HELLO, b""),
        (FrameType.CREDIT, bytes(8)),
    ],
)
def test_a_payload_that_is_not_what_its_type_says_is_refused(
    type: FrameType, payload: bytes
) -> None:
    with pytest.raises(ChannelError, match="channel 7: "):
        decoded([Frame(type, CHANNEL, 0, memoryview(payload))])


@pytest.mark.parametrize(
    "marks",
    [[(2, 5)], [(-1, 5)], [(1, 5), (1, 6)], [(1, 5), (0, 6)], [(0, 5), (1, 4)]],
    ids=["behind all", "before all", "one place", "places descend", "times descend"],
)
def test_watermarks_out_of_order_are_refused(marks: list[tuple[int, int]]) -> None:
    data = joined(encoder().encode(marked(of_rows([1]), *marks)))
    with pytest.raises(ChannelError, match="channel 7: the watermarks of a batch are out of order"):
        decoded(frame_decoder().feed(data))


def test_watermarks_stay_at_their_places_over_several_frames() -> None:
    """One frame takes about a third of the batch, and every place is an edge of one in its turn."""
    table = pa.record_batch({"n": list(range(300))})
    for place in range(301):
        sent = marked(of_columns(table), (place, 5), *([(300, 6)] if place < 300 else []))
        frames = list(
            frame_decoder(1_000).feed(joined(encoder(frame_bytes_max=1_000).encode(sent)))
        )
        assert len(frames) > 2
        (received,) = decoded(frames)
        assert plain(received) == plain(sent)


def test_damaged_columns_are_refused_at_entry() -> None:
    """The peer's memory was wrong before it made the checksum: an offset leads out of the text."""
    data = joined(encoder().encode(of_columns(pa.record_batch({"s": ["0123456789"]}))))
    schema, good = frame_decoder().feed(data)
    metadata, body = bytes(good.payload).rsplit(struct.pack("<2i", 0, 10), 1)
    damaged = metadata + struct.pack("<2i", 0, 1_000) + body
    with pytest.raises(ChannelError, match="channel 7: a frame of type ARROW cannot be read"):
        decoded([schema, Frame(FrameType.ARROW, CHANNEL, 0, memoryview(damaged))])
