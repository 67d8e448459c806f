"""The preview of a rollback, or of a restore from an abandoned checkpoint; it changes nothing.

Two manifests are compared, the names of the job's output files are compared with the line behind
the target, and the result is put into sentences. A figure that cannot be read from here (a
directory of another machine, a manifest of an older version) is *not known*: None in the figures,
and stated in the sentences; the other figures are still given.

*Now* is the job's newest completed checkpoint, *then* the one that it would be restored from.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from weir import untrusted_files
from weir.config import CheckpointConfig
from weir.errors import RestoreError, WeirError
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId
from weir.output.output_files import CommittedName, mark_of, withdrawn_files
from weir.output.rollback_text import sentences
from weir.output.waiting import COMMITS, items_of
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.protocol.lineage import (
    ANY_ATTEMPT,
    AttemptBase,
    Lineage,
    Span,
    lineage_of,
    output_lineage_of,
)
from weir.protocol.pending import SAVEPOINT_KINDS
from weir.storage.attempt_bases import bases_of
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout
from weir.storage.manifest import Manifest, OperatorSummary, list_checkpoints, load
from weir.storage.store import CheckpointStore, store_for

SPLITS_SHOWN_MAX = 100  # Of one source, in the figures.
TEXT_MAX = 120  # Characters of a split or position.
SPLIT_START, SPLIT_END = "start", "end"

_Bases: TypeAlias = Mapping[AttemptNumber, AttemptBase]

_SPLITS = "splits"  # The state in which sources made of splits keep them.
_JOB_KEY = b"weir.job"  # In the footer of output files.
_TRAILER_BYTES = 8  # At the end of a Parquet file: the footer's length, and its mark.
_FOOTER_BYTES_MAX = 1 << 20
_CHECKPOINT_DIRECTORY = re.compile(r"(?P<job>.*)/chk-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMove:
    """A split whose position would change. Positions are JSON, or start or end."""

    split: str
    now: str
    then: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMove:
    """The change of one source's positions."""

    uid: str
    name: str
    # Records read again; negative: skipped, since the state of *then* has them. None: not known.
    records: int | None
    is_at_least: bool  # The records emitted since *now* are not known.
    split_count: int | None  # Splits that move. None: not known.
    splits: tuple[SplitMove, ...]  # The first of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMove:
    """The files in the directory of a file sink that would move or stay.

    Units: sizes in bytes. None: not known.
    """

    uid: str
    name: str
    directory: str
    files_beside: int | None  # Committed, but not on the line behind *then*.
    bytes_beside: int | None
    files_withdrawn: int | None  # Withdrawn earlier, and on that line.
    bytes_withdrawn: int | None
    problem: str = ""  # Why the figures are not known.


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPreview:
    """The effects of restoring the job from a checkpoint.

    Units: sizes in bytes. Event times are watermarks; None: none, or not known.
    """

    checkpoint_id: int
    newest_id: int | None
    is_forward: bool  # To an abandoned checkpoint or another job's: not back.
    rewinds_output: bool
    wall_time_lost_ms: int
    watermark_now_ms: int | None
    watermark_then_ms: int | None
    event_time_lost_ms: int | None
    state_size_now: int | None
    state_size_then: int
    sources: tuple[SourceMove, ...]
    outputs: tuple[OutputMove, ...]
    abandoned: tuple[int, ...] | None  # Checkpoints beside the line afterwards.
    reclaimed: tuple[int, ...] | None  # Abandoned checkpoints on the line afterwards.
    unreadable: tuple[int, ...]  # Checkpoints whose manifest cannot be read.
    abandoned_ttl_ms: int
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    """A manifest and the location of its state files."""

    manifest: Manifest
    store: CheckpointStore
    directory: str

    def operator(self, uid: OperatorId) -> OperatorSummary | None:
        return next((op for op in self.manifest.operators if op.uid == uid), None)


@dataclass(frozen=True, slots=True)
class _Branch:
    """The job's checkpoints that change sides of the line; None: not known."""

    abandoned: tuple[int, ...] | None
    reclaimed: tuple[int, ...] | None
    unreadable: tuple[int, ...] = ()


def preview(
    store: CheckpointStore,
    job_id: JobId,
    target: Manifest | str,
    newest: Manifest | None,
    *,
    rewinds_output: bool,
    now_ms: int,
    emitted: Mapping[str, int] | None,
    abandoned_ttl_ms: int | None = None,
) -> RollbackPreview:
    """The effects of restoring the job from ``target`` now.

    Args:
        store: The job's checkpoint storage.
        target: A manifest, or the URI of a checkpoint or of a savepoint's directory.
        newest: The newest completed checkpoint of the job; None: there is none.
        rewinds_output: Whether file sinks are to withdraw their output.
        emitted: Records of each source since ``newest``, by uid; None: not known.
        abandoned_ttl_ms: As the job is configured; None: the default.

    Raises:
        RestoreError: The URI names no checkpoint or savepoint to restore.
        CorruptStateError: The manifest of the target is damaged.
        StorageError: The target cannot be read. The job's own storage may be out of reach.
    """
    then = _opened(target) if isinstance(target, str) else _side(store, target)
    now = None if newest is None else _side(store, newest)
    bases = _bases(store, job_id)
    line_then, line_now = _line(then, job_id, bases), _line(now, job_id, bases)
    line_of_output = _line(then, job_id, bases, output_lineage_of)
    branch = _branch(store, job_id, then, line_now, line_then)
    watermark_now, watermark_then = _watermark(now), _watermark(then)
    seen = RollbackPreview(
        checkpoint_id=then.manifest.checkpoint_id,
        newest_id=None if now is None else now.manifest.checkpoint_id,
        is_forward=_is_forward(line_now, bases, job_id, then.manifest),
        rewinds_output=rewinds_output,
        wall_time_lost_ms=max(0, now_ms - then.manifest.triggered_ms),
        watermark_now_ms=watermark_now,
        watermark_then_ms=watermark_then,
        event_time_lost_ms=_between(watermark_then, watermark_now),
        state_size_now=None if now is None else now.manifest.state_size,
        state_size_then=then.manifest.state_size,
        sources=tuple(
            _source_move(source, now, then, emitted) for source in _operators(now, then, "source")
        ),
        outputs=tuple(
            _output_move(sink, job_id, then, line_then, line_of_output)
            for sink in _operators(now, then, "sink")
        ),
        abandoned=branch.abandoned,
        reclaimed=branch.reclaimed,
        unreadable=branch.unreadable,
        abandoned_ttl_ms=(
            CheckpointConfig().abandoned_ttl_ms if abandoned_ttl_ms is None else abandoned_ttl_ms
        ),
    )
    return replace(seen, sentences=tuple(sentences(seen)))


# Locations.


def _side(store: CheckpointStore, manifest: Manifest) -> _Side:
    if manifest.location is not None:
        return _Side(manifest, store_for(manifest.location), "")
    return _Side(manifest, store, JobLayout(manifest.job_id).directory)


def _opened(uri: str) -> _Side:
    uri = uri.rstrip("/")
    store, path = store_for(uri), f"{uri}/{SAVEPOINT_MANIFEST}"
    if not store.exists(SAVEPOINT_MANIFEST):
        raise RestoreError(
            f"there is no checkpoint or savepoint at {uri}; give <storage>/<job>/chk-7, or the "
            "directory of a savepoint"
        )
    manifest = load(store.read(SAVEPOINT_MANIFEST), path)
    if not isinstance(manifest, Manifest):
        raise RestoreError(f"the checkpoint at {uri} was given up: {manifest.reason}")
    match = _CHECKPOINT_DIRECTORY.fullmatch(uri)
    if match is None:
        return _Side(manifest, store, "")
    return _side(store_for(match["job"].rpartition("/")[0] or "/"), manifest)


# Lines.


def _bases(store: CheckpointStore, job_id: JobId) -> _Bases | None:
    try:
        return bases_of(store, job_id)
    except WeirError:
        return None  # No line is known then, which the sentences state.


def _line(
    side: _Side | None,
    job_id: JobId,
    bases: _Bases | None,
    follow: Callable[[AttemptNumber, CheckpointId, _Bases], Lineage] = lineage_of,
) -> Lineage | None:
    if side is None or bases is None:
        return None
    manifest = side.manifest
    if manifest.job_id != job_id:  # As ``lineage_of`` does for a fork.
        return Lineage((Span(ANY_ATTEMPT, CheckpointId(1), manifest.checkpoint_id),))
    return follow(manifest.attempt, manifest.checkpoint_id, bases)


def _is_forward(
    line_now: Lineage | None, bases: _Bases | None, job_id: JobId, target: Manifest
) -> bool:
    if target.job_id != job_id:
        return True
    if bases and target.attempt == max(bases):
        return False  # Of the running attempt, such as a savepoint after the newest checkpoint.
    return line_now is not None and not line_now.holds(target.attempt, target.checkpoint_id)


def _branch(
    store: CheckpointStore,
    job_id: JobId,
    then: _Side,
    line_now: Lineage | None,
    line_then: Lineage | None,
) -> _Branch:
    try:
        stored = list_checkpoints(store, job_id)
    except WeirError:
        return _Branch(None, None)
    unreadable = tuple(sorted(one.checkpoint_id for one in stored if one.manifest is None))
    if line_now is None or line_then is None:
        return _Branch(None, None, unreadable)
    completed = sorted(
        (
            one.manifest
            for one in stored
            # Savepoints are never abandoned, wherever the job is restored from.
            if isinstance(one.manifest, Manifest) and one.manifest.kind not in SAVEPOINT_KINDS
        ),
        key=lambda manifest: manifest.checkpoint_id,
    )
    is_own = then.manifest.job_id == job_id
    was = {m.checkpoint_id for m in completed if line_now.holds(m.attempt, m.checkpoint_id)}
    will = {
        m.checkpoint_id for m in completed if is_own and line_then.holds(m.attempt, m.checkpoint_id)
    }
    return _Branch(tuple(sorted(was - will)), tuple(sorted(will - was)), unreadable)


# Sources.


def _operators(
    now: _Side | None, then: _Side, role: Literal["source", "sink"]
) -> list[OperatorSummary]:
    """The job's sources or sinks, those it has now first."""
    operators: dict[OperatorId, OperatorSummary] = {}
    for side in (now, then):
        for op in side.manifest.operators if side is not None else ():
            if op.is_source if role == "source" else op.files is not None:
                operators.setdefault(op.uid, op)
    return list(operators.values())


def _source_move(
    source: OperatorSummary, now: _Side | None, then: _Side, emitted: Mapping[str, int] | None
) -> SourceMove:
    records_now, records_then = _records(now, source.uid), _records(then, source.uid)
    records = None
    if records_now is not None and records_then is not None:
        records = records_now - records_then + (emitted or {}).get(source.uid, 0)
    splits_now, splits_then = _splits(now, source.uid), _splits(then, source.uid)
    moves = None
    if splits_now is not None and splits_then is not None:
        moves = [
            SplitMove(split=_shortened(split), now=_shortened(before), then=_shortened(after))
            for split in dict.fromkeys([*splits_then, *splits_now])
            if (before := splits_now.get(split, SPLIT_END))
            != (after := splits_then.get(split, SPLIT_END))
        ]
    return SourceMove(
        uid=source.uid,
        name=source.name,
        records=records,
        is_at_least=emitted is None,
        split_count=None if moves is None else len(moves),
        splits=tuple((moves or [])[:SPLITS_SHOWN_MAX]),
    )


def _records(side: _Side | None, uid: OperatorId) -> int | None:
    if side is None or not side.manifest.source_records:
        return None
    if side.operator(uid) is None:
        return 0  # The pipeline did not have this source, which starts from its beginning.
    records = side.manifest.source_records.get(uid)
    return records if type(records) is int else None


def _splits(side: _Side | None, uid: OperatorId) -> dict[str, str] | None:
    """The unfinished splits of a source and their positions; None: not known."""
    items = None if side is None else _items(side, uid, _SPLITS)
    if items is None:
        return None
    positions: dict[str, str] = {}
    try:
        for item in items:
            at = item["position"]
            positions[_json(item["split"])] = SPLIT_START if at is None else _json(at)
    except (KeyError, TypeError):
        return None  # The source keeps another state under this name.
    return positions


def _items(side: _Side, uid: OperatorId, state: str) -> list[Any] | None:
    """The items of an operator state, of all subtasks; None: there is none, or it is unreadable."""
    try:
        return items_of(side.manifest, side.store, side.directory, uid, state)
    except WeirError:
        return None  # Damaged or out of reach.


# Event time.


def _watermark(side: _Side | None) -> int | None:
    """The watermark at a checkpoint: the least of the sources', else of the other operators'."""
    if side is None:
        return None
    known = [
        (ack.subtask.operator, ack.metrics.watermark_ms)
        for ack in side.manifest.acks
        if ack.metrics.watermark_ms is not None and ack.metrics.watermark_ms > MIN_WATERMARK_MS
    ]
    sources = {op.uid for op in side.manifest.operators if op.is_source}
    of_sources = [watermark for uid, watermark in known if uid in sources]
    # Where the strategy belongs to an operator behind the source, the source's head has none.
    return min(of_sources or [watermark for _, watermark in known], default=None)


def _between(then: int | None, now: int | None) -> int | None:
    if then is None or now is None or (MAX_WATERMARK_MS in (then, now) and then != now):
        return None
    return now - then


# Outputs.


def _output_move(
    sink: OperatorSummary,
    job_id: JobId,
    then: _Side,
    line: Lineage | None,
    line_of_output: Lineage | None,
) -> OutputMove:
    assert sink.files is not None
    root = Path(sink.files)
    problem = ""
    beside = withdrawn = None
    if line is None or line_of_output is None:
        problem = "the records of which checkpoints the job's attempts restored cannot be read"
    else:
        spared = _spared(then, sink.uid, job_id)
        try:
            beside = _measured(
                path
                for path, name in _committed(root, sink.uid)
                if name.checkpoint_id not in line_of_output
                and name.checkpoint_id not in spared
                and _is_of(path, name, job_id)
            )
            withdrawn = _measured(
                file.path
                for file in withdrawn_files(root, job_id)
                if file.name.operator == sink.uid and file.is_on(line)
            )
        except OSError as error:
            problem = f"{sink.files} cannot be read from here: {error.strerror or error}"
            beside = withdrawn = None
    return OutputMove(
        uid=sink.uid,
        name=sink.name,
        directory=sink.files,
        files_beside=None if beside is None else beside[0],
        bytes_beside=None if beside is None else beside[1],
        files_withdrawn=None if withdrawn is None else withdrawn[0],
        bytes_withdrawn=None if withdrawn is None else withdrawn[1],
        problem=problem,
    )


def _committed(root: Path, uid: OperatorId) -> Iterator[tuple[Path, CommittedName]]:
    """An operator's files in a sink's directory that checkpoints committed."""
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries]
    for file in names:
        name = CommittedName.parse(file)
        if name is not None and name.operator == uid and name.checkpoint_id:
            yield root / file, name


def _measured(paths: Iterable[Path]) -> tuple[int, int]:
    """The number of existing files, and their bytes."""
    count = size = 0
    for path in paths:
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue  # Moved since it was listed.
        count += 1
    return count, size


def _is_of(path: Path, name: CommittedName, job_id: JobId) -> bool:
    """Whether the job wrote a file, by its name or its footer; True for older files without it."""
    if name.writer is not None:
        return name.writer.mark == mark_of(job_id)
    try:
        with untrusted_files.open_regular(path, below=path.parent, may_have_links=True) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TRAILER_BYTES))
            length = int.from_bytes(file.read(4), "little")
            file.seek(max(0, end - _TRAILER_BYTES - min(length, _FOOTER_BYTES_MAX)))
            footer = untrusted_files.read(file, _FOOTER_BYTES_MAX + _TRAILER_BYTES)
    except FileNotFoundError:
        return False  # Moved since it was listed.
    except untrusted_files.UntrustedFileError:
        return False  # No sink makes links or FIFOs.
    # The footer is Thrift, which is not parsed here; it holds texts verbatim.
    return _JOB_KEY not in footer or job_id.encode() in footer


def _spared(side: _Side, uid: OperatorId, job_id: JobId) -> set[int]:
    """Checkpoints beside the line whose files an earlier rollback kept."""
    items = _items(side, uid, COMMITS) or []
    try:
        return {one for item in items if item["job"] == job_id for one in item.get("spared", ())}
    except (KeyError, TypeError, AttributeError):
        return set()  # Another kind of sink, with another state under this name.


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
