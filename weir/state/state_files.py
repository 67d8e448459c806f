"""Files of keyed state: one Arrow IPC stream of rows, or several where it would be too long.

Rows are written in pieces, beside the running loop (``weir.state.snapshot``).
"""

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from weir.common.typeinfo import type_from_wire
from weir.errors import CorruptStateError, RestoreError, SchemaError
from weir.ids import KeyGroupRange, StateHandle
from weir.protocol.restore import WHOLE
from weir.state.evolution import TableTypes, describe_state, describe_table
from weir.storage.store import StoreWriter
from weir.storage.writer import SnapshotCancelled, StoredSnapshotWriter

FORMAT_VERSION = 4
CHANGES_SINCE = 2  # Of changes; a file without removed values is written as version 1.
PARTS_SINCE = 3  # Of lists and maps in parts.
TIMERS_SINCE = 4  # Of timers that came or went.
_HEAD_BYTES = 1 << 16  # Enough for nearly every schema.
_HEAD_OFFSET = 8  # The magic of an Arrow file, before its schema.
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


# Their description.


@dataclass(frozen=True, slots=True)
class StoredState:
    """The description of stored keyed state, from its file's head."""

    name: str
    kind: str  # Of the state; "timers" or "table" for those.
    types: str  # In the words of ``weir.state.evolution``.
    empty: bytes  # The same file without rows.


def read_head(read_range: Callable[[int, int], bytes]) -> StoredState:
    """The description of a stored file of keyed state, from its first bytes alone.

    ``read_range`` returns the bytes from a position on, at most the given number.

    Raises:
        CorruptStateError: ``write_snapshot`` did not store this file.
        RestoreError: A newer version of Weir wrote it.
    """
    try:
        head = read_range(0, _HEAD_BYTES)
        size = (
            _HEAD_OFFSET + 8 + int.from_bytes(head[_HEAD_OFFSET + 4 : _HEAD_OFFSET + 8], "little")
        )
        if len(head) < size:
            head += read_range(len(head), size - len(head))
        schema = pa.ipc.read_schema(pa.py_buffer(head[_HEAD_OFFSET:]))
        about = About.read(schema)
        match about.kind:
            case "timers":
                types = "timers"
            case "table":
                types = describe_table(about.table_types)
            case kind:
                types = describe_state(kind, type_from_wire(about.type))
    except (pa.ArrowException, ValueError, KeyError, TypeError, SchemaError) as cause:
        raise unreadable(cause) from cause
    sink = pa.BufferOutputStream()
    pa.ipc.new_file(sink, schema).close()
    return StoredState(about.name, about.kind, types, sink.getvalue().to_pybytes())


@dataclass(frozen=True, slots=True)
class About:
    """The metadata of a file."""

    kind: str
    name: str
    max_parallelism: int
    canonical_keys: bool
    type: Any = None  # The wire form of the value's type.
    version: int = 1

    def metadata(self) -> dict[str, str]:
        return {
            "weir.version": str(self.version),
            "weir.kind": self.kind,
            "weir.name": self.name,
            "weir.max_parallelism": str(self.max_parallelism),
            "weir.key": "canonical" if self.canonical_keys else "typed",
            "weir.type": json.dumps(self.type),
        }

    @property
    def table_types(self) -> TableTypes:
        """The type of the keys of a table, and of its columns."""
        wire = self.type["key"]
        columns = {name: np.dtype(dtype) for name, dtype in self.type["columns"].items()}
        return None if wire is None else _arrow_from_wire(wire), columns

    @classmethod
    def read(cls, schema: pa.Schema) -> "About":
        metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        version = int(metadata["weir.version"])
        if version > FORMAT_VERSION:
            raise RestoreError(
                f"keyed state has format version {version}, this Weir reads up to version "
                f"{FORMAT_VERSION}; restore it with the version of Weir that wrote it"
            )
        return cls(
            metadata["weir.kind"],
            metadata["weir.name"],
            int(metadata["weir.max_parallelism"]),
            metadata["weir.key"] == "canonical",
            json.loads(metadata["weir.type"]),
            version,
        )


def schema_of(
    about: About, key_kind: pa.DataType | None, columns: Mapping[str, pa.DataType]
) -> pa.Schema:
    fields = [
        pa.field("key_group", pa.uint16(), nullable=False),
        pa.field("key", pa.binary() if key_kind is None else key_kind),
        *(pa.field(name, kind) for name, kind in columns.items()),
    ]
    return pa.schema(fields, metadata=about.metadata())


def unreadable(cause: Exception) -> CorruptStateError:
    return CorruptStateError(
        f"a file of keyed state cannot be read: {cause}; restore from another checkpoint"
    )


def arrow_to_wire(kind: pa.DataType) -> str:
    encoded: str = pa.schema([pa.field("key", kind)]).serialize().to_pybytes().hex()
    return encoded


def _arrow_from_wire(wire: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(wire))).field(0).type
