"""The state of channels: records under way at an unaligned snapshot, as files.

A handle of kind ``channel`` names the direction, the exchange and a number, and has the exchange's
partitioning as its mode:

- ``in/<exchange>/<part>`` holds records that waited at the input of the subtask whose snapshot it
  is, or came in before the barrier of their channel; the parts in order.
- ``out/<exchange>/<receiver>`` holds records that waited at its output for this receiver's credit.
  They come behind the receiver's own on their channel.

A file is the frames of a channel (``weir.channels.framing``), up to the frame of its end: of
columns and rows as on the wire, with the same checks against damage, and against pickles unless the
job allows them. Watermarks between the records are not stored: a restored record must not find
event time ahead of it, so event time goes on with the next watermarks of the senders, which come
behind all that is restored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weir.channels.framing import ElementDecoder, ElementEncoder, FrameDecoder, FrameEncoder
from weir.common.batch import Batch
from weir.errors import ChannelError, CorruptStateError
from weir.graph.exchanges import Exchange
from weir.ids import AttemptNumber, ChannelId, StateHandle
from weir.protocol.elements import EndOfInput, Records
from weir.storage.writer import StoredSnapshotWriter

KIND = "channel"
_MAGIC = b"WRCS"
_VERSION = 1
# A file belongs to no attempt and has one channel.
_ATTEMPT, _CHANNEL = AttemptNumber(0), ChannelId(0)
_HEAD_BYTES = len(_MAGIC) + 1


@dataclass(frozen=True, slots=True)
class ChannelPart:
    """Records of one exchange that a snapshot keeps beside the operators' state.

    The records are the snapshot's own: nothing changes them any more.
    """

    name: str
    exchange: Exchange
    records: Sequence[Records]
    frame_bytes_max: int
    pickles: bool

    def write(self, writer: StoredSnapshotWriter) -> Sequence[StateHandle]:
        """Store the records; on the snapshot thread.

        Raises:
            SchemaError: A record is no data, and the job allows no pickles.
            StorageError: The storage failed.
        """
        data = encode_records(self.records, self.frame_bytes_max, pickles=self.pickles)
        return [writer.put(KIND, self.name, data, mode=self.exchange.partitioning.value)]

    def release(self) -> None:
        """There is nothing to let go: the records are gone with the part."""


def encode_records(
    records: Sequence[Records], frame_bytes_max: int, *, pickles: bool = False
) -> bytes:
    """Batches as the bytes of a file, without the watermarks between their records.

    Raises:
        SchemaError: A record is no data, and the job allows no pickles.
        ConfigError: One record alone is too large for a frame.
    """
    frames = FrameEncoder(_ATTEMPT, frame_bytes_max)
    encoder = ElementEncoder(_CHANNEL, frames, pickles=pickles)
    parts = [_MAGIC + bytes([_VERSION])]
    for one in records:
        batch: Batch = one.payload
        bare = Records(batch.marked(None), one.count, one.size)
        parts += map(bytes, encoder.encode(bare))
    parts += map(bytes, encoder.encode(EndOfInput()))
    return b"".join(parts)


def decode_records(data: bytes, name: str, *, pickles: bool = False) -> list[Records]:
    """The batches that ``encode_records`` wrote; ``name`` names the state in errors.

    Raises:
        CorruptStateError: The bytes are damaged, cut short, or not of this version.
        SchemaError: They hold pickles, and the job allows none.
    """
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEAD_BYTES:
        raise _corrupt(name, "it is no state of a channel")
    if data[len(_MAGIC)] != _VERSION:
        raise _corrupt(name, f"it has version {data[len(_MAGIC)]}, this Weir reads {_VERSION}")
    frames = FrameDecoder(_ATTEMPT, len(data))  # No frame is longer than its file.
    decoder = ElementDecoder(_CHANNEL, pickles=pickles)
    records: list[Records] = []
    has_ended = False
    try:
        for frame in frames.feed(memoryview(data)[_HEAD_BYTES:]):
            element = decoder.decode(frame)
            if has_ended:
                raise _corrupt(name, "something follows its end")
            if isinstance(element, Records):
                records.append(element)
            elif isinstance(element, EndOfInput):
                has_ended = True
            elif element is not None:
                raise _corrupt(name, f"it holds {element}")
    except ChannelError as error:
        raise _corrupt(name, str(error)) from error
    if not has_ended or frames.in_frame:
        raise _corrupt(name, "it is cut short")
    return records


def _corrupt(name: str, problem: str) -> CorruptStateError:
    return CorruptStateError(f"the records under way in {name} cannot be restored: {problem}")
