"""Checkpoints with what belongs to them: acknowledgements, alignments, manifest, positions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint
from jobs.models import Job
from tests import factories
from tests.database.checkpoints import storage
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.protocol.messages import OperatorAck, SnapshotMetrics
from weir.storage.layout import JobLayout, state_file, within
from weir.storage.manifest import Manifest, OperatorSummary, dump
from weir.storage.store import checksum_of, store_for
from weir.storage.writer import dump_items

STATE_BYTES = 40_000  # Of each subtask of a stateful operator.
STATEFUL = ("hourly", "totals")

PARQUET = {"path": "/data/flights-2024-01.parquet", "size": 9, "mtime_ns": 1, "row_groups": [3]}


def acknowledged(
    of: Checkpoint,
    parallelism: int = factories.PARALLELISM,
    *,
    late_ms: float = 300.0,
    state_bytes: int = STATE_BYTES,
    chains: Sequence[str] = factories.CHAINS,
) -> Checkpoint:
    """All subtasks of some chains acknowledged; the barrier of ``flights-0`` came late."""
    acks = []
    for uid, _, chain, *_ in factories.FLIGHTS:
        if chain not in chains:
            continue
        for index in range(parallelism):
            phases = {
                "start_delay_ms": (late_ms if index == 0 else 4.0) if chain == "flights" else 5.0,
                "alignment_ms": 0.0 if chain == "flights" else late_ms + index,
                "sync_ms": 1.5 + index,
                "async_ms": 42.0 + index,
            }
            size = state_bytes if uid in STATEFUL else 0
            acks.append(
                factories.ack(
                    of,
                    uid,
                    index,
                    chain=chain,
                    acknowledged_at=of.triggered_at
                    + timedelta(milliseconds=sum(phases.values()) + 3),
                    bytes_during_alignment=0 if chain == "flights" else 20_000,
                    state_bytes=size,
                    written_bytes=size // 2,
                    handles=[file_handle(of, uid, index, size)] if size else [],
                    **phases,
                )
            )
            if uid == chain and chain != "flights":
                arrived = [late_ms, *(float(sender) for sender in range(parallelism - 1))]
                factories.gate_alignment(of, uid, index, arrived)
    factories.acknowledge_all(of, acks)
    return of


def file_handle(of: Checkpoint, uid: str, index: int, size: int) -> dict[str, Any]:
    """A handle of a state file, as an acknowledgement's row has it."""
    subtask = SubtaskId(OperatorId(uid), index)
    return {
        "kind": "keyed",
        "name": "state.sum",
        "size": size,
        "checksum": f"{of.number:032x}",
        "path": state_file(
            CheckpointId(of.number), AttemptNumber(of.attempt), subtask, "state.sum"
        ),
        "inline": None,
        "key_groups": {"first": index, "last": index},
        "mode": None,
    }


def stored(
    job: Job,
    of: Checkpoint,
    splits: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    *,
    in_files: bool = False,
    records: int | None = 38_200,
    state: bytes | None = None,
) -> Manifest:
    """Write a checkpoint's manifest, as its job's driver does.

    Args:
        splits: Those that each subtask of the source still has to read, by its index.
        in_files: Whether they are files of their own, as long ones are.
        state: What is kept in their place, of a source that keeps something else.
    """
    store = store_for(of.location) if of.location else locations.store_of(job)
    directory = "" if of.location else locations.layout_of(job).directory
    acks = []
    for index, items in (splits or {0: []}).items():
        data = dump_items(items) if state is None else state
        path = f"chk-{of.number}/1/flights-{index}-splits" if in_files else None
        if path is not None:
            store.put(within(directory, path), data)
        handle = StateHandle(
            kind="operator",
            name="splits",
            size=len(data),
            checksum=checksum_of(data),
            path=path,
            inline=None if in_files else data,
            mode="split",
        )
        subtask = SubtaskId(OperatorId("flights"), index)
        acks.append(OperatorAck(subtask, (handle,), SnapshotMetrics(state_size=len(data))))
    manifest = replace(
        storage.manifest(job.pk, of.number),
        operators=(
            OperatorSummary(OperatorId("flights"), "flights", len(acks), 128, is_source=True),
            OperatorSummary(OperatorId("totals"), "Aggregate", 2, 128),
        ),
        acks=tuple(acks),
        location=of.location or None,
        source_records={} if records is None else {"flights": records},
    )
    path = "manifest" if of.location else JobLayout(JobId(job.pk)).manifest(CheckpointId(of.number))
    store.put(path, dump(manifest))
    return manifest


def keep_in(job: Job, directory: Path) -> Job:
    """Let the job's checkpoints lie in a directory."""
    job.storage = str(directory)
    job.save(update_fields=["storage"])
    return job
