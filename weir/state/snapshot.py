"""The snapshot of keyed state: from a frozen view to files, and back in a restore.

Every state, every table and the timers are one Arrow IPC file each, or several of 64 MiB, readable
without Weir: every row has the columns ``key_group`` and ``key`` and the value columns. Rows of
states are sorted by key group, and so are timers in memory within their domain; those of RocksDB
are not. Rows of tables keep their order in memory, because gathering them would take longer than
writing them. The schema's metadata describes the file completely. ``key`` is typed where all keys
are of one simple type, else it holds canonical bytes (see ``weir.graph.key_groups``). The first
keys decide the type; when a later one does not fit, the files are begun anew with canonical bytes.

======== ==================================================================
kind     columns beside ``key_group`` and ``key``
======== ==================================================================
value    ``value``; also of reducing and aggregating state; list and map
         state hold a list or a map there. One that is too large to be
         written at once is in several rows, behind all others, of which
         each ``adds`` to what is there for its key; ``removed`` are keys of
         a map that are there no more
timers   ``domain``, ``timestamp_ms``, ``namespace`` (canonical bytes); in
         changes, in their order, ``removed``: the timer is there no more
table    one per value column
======== ==================================================================

Writing happens beside the running loop. Python objects are converted at most 8,192 at a time, about
a millisecond, and after each piece the thread offers the interpreter lock. It does not sleep, which
would take longer than the piece: a loop that misses the offer gets the lock after the switch
interval, which worker processes set to half a millisecond. Pure columns are copied, checksummed and
written without the lock, so it need not be offered.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice, pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation, type_from_wire
from weir.errors import KeyTypeError, RestoreError, SchemaError
from weir.ids import KeyGroupRange, StateHandle
from weir.protocol.restore import CHANGES, WHOLE
from weir.state.backend import FrozenKeyedState, FrozenState, KeyedStateBackend, file_name
from weir.state.backends.base import FrozenChanges, Part, StateTable
from weir.state.chains import Chain, Valid, slices
from weir.state.codec import (
    MixedKeysError,
    load_keys,
    store_keys,
    stored_key_type,
)
from weir.state.columns.stored_rows import restore_rows, table_content
from weir.state.columns.table import ColumnarTable, FrozenColumns
from weir.state.expiry import live, live_rows
from weir.state.keyed_timers import FrozenTimers, KeyedTimers
from weir.state.pieces import FIRST_OBJECTS, PIECE_OBJECTS, PieceSize, keys_of, rows_of
from weir.state.state_files import (
    CHANGES_SINCE,
    PARTS_SINCE,
    TIMERS_SINCE,
    About,
    Content,
    schema_of,
    unreadable,
    write_files,
)
from weir.state.timers import ChangedTimer, TimerId
from weir.storage.writer import StoredSnapshotWriter

Frozen: TypeAlias = FrozenKeyedState | FrozenTimers | FrozenColumns
Groups: TypeAlias = npt.NDArray[np.uint16]


class KeyedPart:
    """A frozen view of keyed state as a part of a snapshot."""

    def __init__(self, frozen: Frozen) -> None:
        self._frozen = frozen

    def write(self, writer: StoredSnapshotWriter) -> tuple[StateHandle, ...]:
        """Store the view; on the snapshot thread."""
        return write_snapshot(self._frozen, writer)

    def release(self) -> None:
        """Release the view, which is stored or dropped; on the loop thread."""
        self._frozen.release()


class RestoreTarget(Protocol):
    """The receiver of restored keyed state."""

    keyed: KeyedStateBackend
    timers: KeyedTimers

    def table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        """The table of this name, created if it does not exist yet.

        It has at least these columns, and holds their values exactly.
        """


def write_snapshot(frozen: Frozen, writer: StoredSnapshotWriter) -> tuple[StateHandle, ...]:
    """Store a frozen view: a handle or more per state that is not empty.

    Raises:
        SnapshotCancelled: ``writer.cancelled`` became true; the unfinished file was deleted.
        SchemaError: A value does not fit the type its state declares.
        StorageError: The storage failed.
    """
    handles: list[StateHandle] = []
    match frozen:
        case FrozenKeyedState():
            for state in frozen.states:
                handles += _write_state(frozen, state, writer)
                state.tables.end()
        case FrozenColumns():
            handles += _write_rows(
                frozen, f"table.{frozen.name}", partial(table_content, frozen), writer
            )
        case FrozenTimers():
            handles += _write_rows(frozen, "timers", partial(_timers, frozen), writer)
            for queue in frozen.timers.values():
                queue.end()
    return tuple(handles)


def _write_state(
    frozen: FrozenKeyedState, state: FrozenState, writer: StoredSnapshotWriter
) -> Sequence[StateHandle]:
    """Store one state: whole, or its changes, perhaps with a slice (``weir.state.chains``)."""
    name, groups = file_name(state.name, state.part), frozen.key_groups
    values = partial(_state, frozen, state)
    whole = partial(values, groups, True)
    changes = state.changes if writer.shares else None
    if changes is None:
        return () if state.tables.is_empty else _written(name, whole, groups, writer)
    chain = Chain(changes.base, groups)
    if state.tables.is_empty:
        files: Sequence[StateHandle] = ()
    elif not changes.base or chain.is_too_long:
        if not _is_large(partial(values, groups, False), writer.inline_max or 0):
            changes.stored(())
            return _written(name, whole, groups, writer)
        # In slices, each of which the one that takes its place makes void.
        files = [
            file
            for part in slices(groups, chain.whole_size)
            for file in _written(name, partial(values, part, False), part, writer, WHOLE)
        ]
    elif changes.is_empty and not (
        state.parts is not None and any(state.parts.changes(None, lambda: 1))
    ):
        files = chain.files
    else:
        rewritten = chain.next_slice() if chain.is_long else None
        rest = partial(_changes, frozen, state, changes, rewritten)
        added = _written(name, rest, groups, writer, CHANGES)
        if rewritten is not None:
            added += _written(name, partial(values, rewritten, False), rewritten, writer, WHOLE)
        files = Chain([*chain.files, *added], groups).files
    changes.stored(files)
    return files


def _write_rows(
    frozen: FrozenColumns | FrozenTimers,
    name: str,
    content: Callable[[bool, bool], Content],
    writer: StoredSnapshotWriter,
) -> Sequence[StateHandle]:
    """Store a table or timers: whole, or their changes (``weir.state.chains``).

    ``content``: of the changes alone if its first argument is True.
    """
    groups, whole = frozen.key_groups, partial(content, False)
    if frozen.since is None or not writer.shares:
        return _written(name, whole, groups, writer) if len(frozen) else ()
    chain = Chain(frozen.base, groups)
    changed = frozen.changed
    if not len(frozen):
        files: Sequence[StateHandle] = ()
    elif not frozen.base or chain.is_table_due(changed, len(frozen)):
        if frozen.nbytes < (writer.inline_max or 0):
            frozen.stored(())
            return _written(name, whole, groups, writer)
        files = _written(name, whole, groups, writer, WHOLE)
    elif not changed:
        files = chain.files
    else:
        added = _written(name, partial(content, True), groups, writer, CHANGES)
        files = [*chain.files, *added]
    frozen.stored(files)
    return files


def _is_large(content: Callable[[bool], Content], limit: int) -> bool:
    """Whether rows are more than the acknowledgement would take; few are converted for that."""
    size = 0
    try:
        for batch in content(False).batches:
            size += batch.nbytes
            if size >= limit:
                return True
    except MixedKeysError:
        return True
    return False


def _written(
    name: str,
    content: Callable[[bool], Content],
    key_groups: KeyGroupRange,
    writer: StoredSnapshotWriter,
    mode: str | None = None,
) -> list[StateHandle]:
    """Write files; ``content`` makes their rows, with canonical keys if True."""
    written: list[StateHandle] = []
    try:
        write_files(name, content(False), key_groups, writer, written, mode)
    except MixedKeysError:
        for handle in written:
            writer.withdraw(handle)
        written = []
        write_files(name, content(True), key_groups, writer, written, mode)
    except SchemaError as cause:
        raise SchemaError(f"{name}: {cause}") from cause
    return written


def restore(
    data: bytes,
    key_groups: KeyGroupRange,
    target: RestoreTarget,
    *,
    valid: Valid | None = None,
    allow_pickled_state: bool = False,
) -> None:
    """Add the rows of ``key_groups`` in a stored file of keyed state to ``target``.

    ``valid`` tells which of the target's groups the file is valid of; None: all.

    Raises:
        CorruptStateError: ``write_snapshot`` did not store this data.
        RestoreError: The state does not fit the job, or holds pickles that are not allowed.
    """
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            about = About.read(reader.schema)
            if about.max_parallelism != target.keyed.max_parallelism:
                raise RestoreError(
                    f"{about.kind} {about.name!r} was stored with max parallelism "
                    f"{about.max_parallelism}, the job has {target.keyed.max_parallelism}; set "
                    "the old one, by which keys were assigned to key groups"
                )
            first = target.keyed.key_groups.first
            batches = _owned_batches(reader, key_groups, valid, first)
            match about.kind:
                case "timers":
                    _restore_timers(about, batches, target)
                case "table":
                    table = target.table(about.name, *about.table_types)
                    restore_rows(table, about, (batch for _, batch in batches))
                case "value" | "list" | "map" | "reducing" | "aggregating":
                    _restore_state(about, batches, target, allow_pickled_state)
                case unknown:
                    raise ValueError(f"it is of unknown kind {unknown!r}")
    except (pa.ArrowException, ValueError, KeyError, TypeError, SchemaError, KeyTypeError) as cause:
        raise unreadable(cause) from cause


# Writing.


def _state(
    frozen: FrozenKeyedState,
    state: FrozenState,
    key_groups: KeyGroupRange,
    is_last: bool,
    canonical: bool,
) -> Content:
    """The values of some key groups; ``is_last``: the state is read no more after them."""
    first = frozen.key_groups.first
    read = range(key_groups.first - first, key_groups.last - first + 1)
    key_kind = None
    if not canonical:
        key_kind = stored_key_type(islice(keys_of(state.tables, read), 1))
    schema = _schema_of(frozen, state, key_kind)

    def batches() -> Iterator[pa.RecordBatch]:
        sized, size = state.kind in ("list", "map"), PieceSize()
        last = is_last and key_kind is None
        for rows in rows_of(state.tables, first, size, groups=read, sized=sized, last=last):
            if state.limit_ms is not None:
                rows = live_rows(state.kind, state.limit_ms, rows)
            groups, slots, values = rows
            arrays = [groups, store_keys(slots, key_kind), state.type_info.to_arrow(values)]
            batch = _batch(arrays, schema)
            size.measured(batch.nbytes)
            yield batch
        if state.parts is not None:
            parts = state.parts.parts(read, lambda: size.objects)
            yield from _in_parts(state, parts, key_kind, schema, size)

    return Content(schema, batches())


def _changes(
    frozen: FrozenKeyedState,
    state: FrozenState,
    changes: FrozenChanges,
    without: KeyGroupRange | None,
    canonical: bool,
) -> Content:
    """The changes in all other key groups; the value of a key that was removed is null."""
    key_kind = None
    if not canonical:
        first_keys = (slots for _, slots, _ in changes.pieces(without, lambda: FIRST_OBJECTS))
        key_kind = stored_key_type(islice(first_keys, 1))
    schema = _schema_of(frozen, state, key_kind, is_changes=True)

    def batches() -> Iterator[pa.RecordBatch]:
        size = PieceSize()
        for groups, slots, values in changes.pieces(without, lambda: size.objects):
            if (limit_ms := state.limit_ms) is not None:
                values = [v if v is None else live(state.kind, v, limit_ms) for v in values]
            size.weight = len(slots)
            stored = _or_null(state.type_info, values)
            arrays = [pa.array(groups, pa.uint16()), store_keys(slots, key_kind), stored]
            batch = _batch(arrays, schema)
            size.measured(batch.nbytes)
            yield batch
        if state.parts is not None:
            parts = state.parts.changes(without, lambda: size.objects)
            yield from _in_parts(state, parts, key_kind, schema, size)

    return Content(schema, batches())


def _batch(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of which each replaces what was there for its key."""
    count = len(arrays[0])
    for name in schema.names[len(arrays) :]:
        kind = schema.field(name).type
        arrays.append(pa.array([False] * count) if name == "adds" else pa.nulls(count, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_parts(
    state: FrozenState,
    all_parts: Iterator[list[Part]],
    key_kind: pa.DataType | None,
    schema: pa.Schema,
    size: PieceSize,
) -> Iterator[pa.RecordBatch]:
    """Rows of which each adds to what was there for its key."""
    for parts in all_parts:
        if (limit_ms := state.limit_ms) is not None:
            parts = [_live(state.kind, part, limit_ms) for part in parts]
        size.weight = sum(len(part.value) + len(part.removed) for part in parts)
        arrays = [
            pa.array([part.group for part in parts], pa.uint16()),
            store_keys([part.slot for part in parts], key_kind),
            state.type_info.to_arrow([part.value for part in parts]),
            pa.array([True] * len(parts)),
        ]
        if isinstance(state.type_info, MapTypeInfo):
            removed = ListTypeInfo(state.type_info.key_type)
            arrays.append(removed.to_arrow([part.removed for part in parts]))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        size.measured(batch.nbytes)
        yield batch


def _live(kind: str, part: Part, limit_ms: int) -> Part:
    """A part of which what has expired is removed."""
    kept = live(kind, part.value, limit_ms)
    if kind == "list":
        return replace(part, value=kept or [])
    gone = [key for key in part.value if kept is None or key not in kept]
    return replace(part, value=kept or {}, removed=[*part.removed, *gone])


def _or_null(type_info: TypeInformation, values: list[Any]) -> pa.Array:
    """Values as a column of their type, in which None is null."""
    there = [value for value in values if value is not None]
    column = type_info.to_arrow(there)
    if len(there) == len(values):
        return column
    places = count()
    return column.take(
        pa.array([None if value is None else next(places) for value in values], pa.int64())
    )


def _schema_of(
    frozen: FrozenKeyedState,
    state: FrozenState,
    key_kind: pa.DataType | None,
    *,
    is_changes: bool = False,
) -> pa.Schema:
    columns = {"value": state.type_info.arrow_type}
    version = CHANGES_SINCE if is_changes else 1
    if state.parts is not None and not state.parts.is_empty:
        version = PARTS_SINCE
        columns["adds"] = pa.bool_()
        if isinstance(state.type_info, MapTypeInfo):
            columns["removed"] = pa.list_(state.type_info.key_type.arrow_type)
    about = About(
        state.kind,
        state.name,
        frozen.max_parallelism,
        key_kind is None,
        state.type_info.to_wire(),
        version,
    )
    return schema_of(about, key_kind, columns)


def _timers(frozen: FrozenTimers, of_changes: bool, canonical: bool) -> Content:
    """All timers, or those that came or went."""
    first = frozen.key_groups.first

    def pieces(
        size: PieceSize, last: bool
    ) -> Iterator[tuple[str, pa.Array, Sequence[TimerId], list[pa.Array]]]:
        if of_changes:
            for domain, changes in frozen.changes():
                while some := list(islice(changes, size.objects)):
                    groups = pa.array([group for group, _, _ in some], pa.uint16())
                    removed = pa.array([not is_there for _, _, is_there in some])
                    yield domain, groups, [timer for _, timer, _ in some], [removed]
            return
        for domain, queue in frozen.timers.items():
            for groups, timers in queue.rows(first, size, last=last):
                yield domain, groups, timers, []

    keys = ([timer[1] for timer in timers] for _, _, timers, _ in pieces(PieceSize(), False))
    key_kind = None if canonical else stored_key_type(islice(keys, 1))
    columns = {"domain": pa.string(), "timestamp_ms": pa.int64(), "namespace": pa.binary()}
    version = 1
    if of_changes:
        version, columns["removed"] = TIMERS_SINCE, pa.bool_()
    about = About("timers", "timers", frozen.max_parallelism, key_kind is None, version=version)
    schema = schema_of(about, key_kind, columns)

    def batches() -> Iterator[pa.RecordBatch]:
        size = PieceSize(PIECE_OBJECTS)  # All of them are small.
        for domain, groups, timers, removed in pieces(size, key_kind is None):
            times, slots, namespaces = zip(*timers, strict=True)
            arrays = [
                groups,
                store_keys(slots, key_kind),
                pa.array([domain] * len(times), pa.string()),
                pa.array(times, pa.int64()),
                store_keys(namespaces, None),
            ]
            yield pa.RecordBatch.from_arrays([*arrays, *removed], schema=schema)

    return Content(schema, batches())


# Reading.


def _owned_batches(
    reader: pa.RecordBatchFileReader, key_groups: KeyGroupRange, valid: Valid | None, first: int
) -> Iterator[tuple[Groups, pa.RecordBatch]]:
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        groups: Groups = batch.column("key_group").to_numpy()
        owned = (groups >= key_groups.first) & (groups <= key_groups.last)
        if valid is not None:
            owned[owned] = valid[groups[owned] - first]
        if owned.all():
            yield groups, batch
        elif owned.any():
            yield groups[owned], batch.filter(pa.array(owned))


def _restore_state(
    about: About,
    batches: Iterator[tuple[Groups, pa.RecordBatch]],
    target: RestoreTarget,
    allow_pickled_state: bool,
) -> None:
    type_info: TypeInformation = type_from_wire(about.type)
    if type_info.has_pickles and not allow_pickled_state:
        raise RestoreError(
            f"state {about.name!r} holds pickles, which run code when they are read; if you trust "
            "the checkpoint, restore it with --allow-pickled-state"
        )
    table = target.keyed.restored_table(about.name, about.kind, type_info)
    first = target.keyed.key_groups.first
    for groups, batch in batches:
        if about.version >= PARTS_SINCE:
            adds = batch.column("adds").to_numpy(zero_copy_only=False)
            if adds.any():  # All or none of them.
                _restore_parts(about, groups, batch, table, first)
                continue
        is_removed = batch.column("value").is_null().to_numpy(zero_copy_only=False)
        if is_removed.any():
            if about.version < CHANGES_SINCE:
                raise ValueError(f"state {about.name!r} holds a key without a value")
            removed = load_keys(
                batch.column("key").filter(pa.array(is_removed)), canonical=about.canonical_keys
            )
            for group, start, end in _runs(groups[is_removed]):
                table.unload(group - first, removed[start:end])
            groups, batch = groups[~is_removed], batch.filter(pa.array(~is_removed))
        slots = load_keys(batch.column("key"), canonical=about.canonical_keys)
        values = type_info.from_arrow(batch.column("value"))
        for group, start, end in _runs(groups):
            table.load(group - first, slots[start:end], values[start:end])


def _restore_parts(
    about: About, groups: Groups, batch: pa.RecordBatch, table: StateTable, first: int
) -> None:
    type_info: TypeInformation = type_from_wire(about.type)
    removed: list[Any] = [()] * len(groups)
    if isinstance(type_info, MapTypeInfo):
        removed = ListTypeInfo(type_info.key_type).from_arrow(batch.column("removed"))
    slots = load_keys(batch.column("key"), canonical=about.canonical_keys)
    values = type_info.from_arrow(batch.column("value"))
    for group, slot, value, gone in zip(groups.tolist(), slots, values, removed, strict=True):
        table.add(group - first, slot, value, gone)


def _restore_timers(
    about: About, batches: Iterator[tuple[Groups, pa.RecordBatch]], target: RestoreTarget
) -> None:
    is_changes = about.version >= TIMERS_SINCE
    for groups, batch in batches:
        slots = load_keys(batch.column("key"), canonical=about.canonical_keys)
        spaces = load_keys(batch.column("namespace"), canonical=True)
        times = batch.column("timestamp_ms").to_pylist()
        domains = batch.column("domain").to_pylist()
        removed = batch.column("removed").to_pylist() if is_changes else [False] * len(times)
        timers = zip(times, slots, spaces, strict=True)
        of_domain: defaultdict[str, list[ChangedTimer]] = defaultdict(list)
        rows = zip(domains, groups.tolist(), timers, removed, strict=True)
        for domain, group, timer, gone in rows:
            of_domain[domain].append((group, timer, not gone))
        for domain, own in of_domain.items():
            queue = target.timers.queues[domain]
            if is_changes:
                queue.restore_changes(own)
            else:
                queue.restore((group, timer) for group, timer, _ in own)


def _runs(groups: Groups) -> Iterator[tuple[int, int, int]]:
    """Runs of one key group: group, start, end."""
    bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    for start, end in pairwise(bounds):
        if end > start:
            yield int(groups[start]), start, end
