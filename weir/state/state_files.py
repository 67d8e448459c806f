"""Files of keyed state: one Arrow IPC stream of rows, or several where it would be too long.

Rows are written in pieces, beside the running loop (``weir.state.snapshot``).
"""

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.ids import KeyGroupRange, StateHandle
from weir.protocol.restore import WHOLE
from weir.storage.store import StoreWriter
from weir.storage.writer import SnapshotCancelled, StoredSnapshotWriter

FILE_BYTES = 64 << 20  # Of a file, about: a restore holds one of them in memory.
SINK_BYTES = 1 << 18  # Half a column of a chunk, so that columns bypass the buffer.


@dataclass(frozen=True, slots=True)
class Content:
    """The schema and rows of one file."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]  # Each is written before the next is taken.
    of_objects: bool = True  # Converting them needs the interpreter lock.


def write_files(
    name: str,
    content: Content,
    key_groups: KeyGroupRange,
    writer: StoredSnapshotWriter,
    written: list[StateHandle],
    mode: str | None = None,
) -> None:
    """Write one file, or several where it would be too long to be read at once.

    Args:
        mode: Of files that later checkpoints may name; None: they are this one's own.
    """
    batch = next(content.batches, None)
    form = "keyed" if mode is None else f"{mode}.{key_groups.first}"  # Several of one name.
    while batch is not None or not written:
        place = f"{form}+{len(written)}/{name}" if written else f"{form}/{name}"
        # What is whole in several files begins in the first.
        own_mode = None if written and mode == WHOLE else mode
        with _Sink(place, writer, own_mode, is_shared=mode is not None) as sink:
            # Arrow writes many small buffers, and each call into Python waits for the interpreter
            # lock. Buffers of at least SINK_BYTES bypass the stream's own.
            buffered = pa.BufferedOutputStream(pa.PythonFile(sink, mode="w"), SINK_BYTES)
            size = 0
            with pa.ipc.new_file(buffered, content.schema) as stream:
                while batch is not None and size < FILE_BYTES:
                    if writer.cancelled():
                        raise SnapshotCancelled(f"stopped writing {name}")
                    stream.write_batch(batch)
                    size += batch.nbytes
                    if content.of_objects:
                        time.sleep(0)
                    batch = None  # Dropped before the next one is made.
                    batch = next(content.batches, None)
            buffered.flush()
            written.append(sink.finish(name, key_groups))


class _Sink(io.RawIOBase):
    """The bytes of one file: in memory while they may be inline, from then on in the storage."""

    def __init__(
        self, path_name: str, writer: StoredSnapshotWriter, mode: str | None, *, is_shared: bool
    ) -> None:
        super().__init__()
        self._path_name = path_name
        self._writer = writer
        self._is_shared = is_shared
        self._mode = mode
        self._limit = 0 if is_shared else writer.inline_max
        self._held: bytearray | None = bytearray()
        self._file: StoreWriter | None = None
        self._path = ""
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._position += size
        if self._file is not None:
            self._file.write(data)
        elif self._held is not None:
            self._held += data
            if self._limit is not None and len(self._held) >= self._limit:
                place = self._writer.shared_path if self._is_shared else self._writer.path
                self._path = place(self._path_name)
                self._file = self._writer.open(self._path)
                self._file.write(memoryview(self._held))
                self._held = None
        return size

    def finish(self, name: str, key_groups: KeyGroupRange) -> StateHandle:
        """The handle of everything written."""
        if self._file is None:
            return self._writer.put("keyed", name, bytes(self._held or b""), key_groups=key_groups)
        written = self._file.close()
        return StateHandle(
            kind="keyed",
            name=name,
            size=written.size,
            checksum=written.checksum,
            path=self._path,
            key_groups=key_groups,
            mode=self._mode,
        )

    def __exit__(self, *raised: Any) -> None:
        if self._file is not None:
            self._file.abort()  # Without effect once it is finished.
        # Arrow flushes its buffer when it is collected; by then those bytes are not needed.
        self._file = self._held = None
        super().__exit__(*raised)
