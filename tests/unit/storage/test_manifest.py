"""Manifests: written whole, read with suspicion."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptStateError, ProtocolError, RestoreError
from weir.ids import (
    AttemptNumber,
    CheckpointId,
    JobId,
    KeyGroupRange,
    OperatorId,
    StateHandle,
    SubtaskId,
)
from weir.protocol.deployment import Versions
from weir.protocol.elements import CheckpointKind
from weir.protocol.messages import GateAlignment, OperatorAck, SnapshotMetrics
from weir.protocol.wire import from_wire, to_wire
from weir.storage.layout import JobLayout, in_job
from weir.storage.manifest import (
    VERSION,
    Manifest,
    OperatorSummary,
    Tombstone,
    discard_savepoint,
    dump,
    find_jobs,
    list_checkpoints,
    load,
    read_handle,
    verify,
)
from weir.storage.memory import MemoryStore
from weir.storage.store import checksum_of

JOB = JobId("job-1")


def inline(data: bytes = b"small", name: str = "position") -> StateHandle:
    return StateHandle("operator", name, len(data), checksum_of(data), inline=data, mode="split")


def stored(store: MemoryStore, data: bytes, path: str = "chk-1/1/sum-0-x") -> StateHandle:
    store.put(in_job(JOB, path), data)
    groups = KeyGroupRange(0, 63)
    return StateHandle("keyed", "x", len(data), checksum_of(data), path=path, key_groups=groups)


def manifest(*handles: StateHandle, **changes: Any) -> Manifest:
    gate = GateAlignment(0, ("a-0", "a-1"), (0.5, None), (1.25, 0.0), (100, 0))
    metrics = SnapshotMetrics(start_delay_ms=0.1, state_size=10, gates=(gate,))
    made = Manifest(
        job_id=JOB,
        job_name="flights",
        checkpoint_id=CheckpointId(1),
        parent_id=None,
        kind=CheckpointKind.CHECKPOINT,
        attempt=AttemptNumber(1),
        triggered_ms=1_700_000_000_000,
        completed_ms=1_700_000_000_100,
        versions=Versions("0.1.0", "3.11", "20.0.0"),
        operators=(OperatorSummary(OperatorId("sum"), "Sum", 2, 128),),
        acks=(OperatorAck(SubtaskId(OperatorId("sum"), 0), handles, metrics),),
    )
    return replace(made, **changes)


TOMBSTONE = Tombstone(
    job_id=JOB,
    checkpoint_id=CheckpointId(2),
    attempt=AttemptNumber(1),
    given_up_ms=5,
    reason="checkpoint_expired",
)


def without_later_fields(body: dict[str, Any], version: int) -> dict[str, Any]:
    """A manifest's body as a version has it: 2 with nothing of records under way."""
    if version < 4:
        body.pop("state_backend", None)  # A tombstone has none.
    for ack in body.get("acks", ()) if version < 3 else ():
        metrics = ack["metrics"]
        del metrics["bytes_persisted_at_outputs"], metrics["switched"], metrics["switched_ms"]
        for gate in metrics["gates"]:
            del gate["in_flight"]
    return body


@pytest.mark.parametrize(
    "written",
    [
        manifest(inline(b"\0\xff"), parent_id=CheckpointId(4)),
        manifest(StateHandle("keyed", "x", 3, "00", path="p", key_groups=KeyGroupRange(1, 2))),
        manifest(replace(inline(), kind="channel", name="in/a>b.0/0/0", mode="hash")),
        manifest(inline(), state_backend="rocksdb"),
        TOMBSTONE,
    ],
    ids=["inline", "file", "in flight", "backend", "tombstone"],
)
def test_a_manifest_comes_back_as_it_was(written: Manifest | Tombstone) -> None:
    assert load(dump(written)) == written
    stored = json.loads(dump(written))
    body = stored["tombstone" if written is TOMBSTONE else "manifest"]
    whole = json.loads(json.dumps(to_wire(written)))  # Though another codec writes it.
    assert body == without_later_fields(whole, stored["version"])


@given(
    st.floats(0, allow_infinity=False) | st.sampled_from([0.0001, 0.0000999, 1e15, 1e16]),
    st.text(max_size=5) | st.sampled_from(["1e5", ":1e5", "\x7f", "\\", "\N{SNOWMAN}"]),
    st.integers(0, 2**70) | st.floats(allow_nan=False, allow_infinity=False),
)
def test_whatever_numbers_and_texts_it_holds_its_checksum_fits(
    milliseconds: float, text: str, records: float
) -> None:
    metrics = SnapshotMetrics(sync_ms=milliseconds)
    acks = (OperatorAck(SubtaskId(OperatorId("sum"), 0), (inline(name=text),), metrics),)
    written = manifest(acks=acks, job_name=text, source_records={text: records})
    stored = dump(written)
    read = load(stored)
    assert read == written
    body = json.loads(stored)["manifest"]
    assert repr(read) == repr(from_wire(Manifest, body))  # Though another codec reads it.


@pytest.mark.parametrize("value", [float("nan"), "soon", None])
def test_a_measurement_that_is_no_number_is_refused(value: Any) -> None:
    broken = OperatorAck(SubtaskId(OperatorId("sum"), 0), (), SnapshotMetrics(sync_ms=value))
    with pytest.raises(ProtocolError, match="sync_ms"):
        dump(manifest(acks=(broken,)))


def test_any_changed_byte_of_a_manifest_is_noticed() -> None:
    whole = dump(manifest(inline()))
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x01
        try:
            read = load(bytes(damaged), "job-1/chk-1/manifest")
        except (CorruptStateError, RestoreError) as error:
            assert "job-1/chk-1/manifest" in str(error)  # noqa: PT017
        else:  # White space between the fields carries nothing.
            assert read == manifest(inline())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"format": "x", "version": 1}', b"\xff\xfe"]
)
def test_what_is_no_manifest_is_called_so_by_name(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match=r"chk-3/manifest cannot.*weir checkpoints"):
        load(data, "j/chk-3/manifest")


def test_a_truncated_manifest_is_corrupt() -> None:
    with pytest.raises(CorruptStateError):
        load(dump(manifest())[:-20])


def test_a_newer_version_is_refused_by_number() -> None:
    newer = {**json.loads(dump(manifest())), "version": VERSION + 1}
    with pytest.raises(RestoreError, match=f"version {VERSION + 1}.*up to version {VERSION}"):
        load(json.dumps(newer).encode())


def test_version_1_is_read() -> None:
    """It knew no savepoints, no positions of sources in records, and less of operators."""
    older = json.loads(dump(manifest(inline())))
    body = older["manifest"]
    for added in ("location", "source_records"):
        del body[added]
    for operator in body["operators"]:
        del operator["is_source"], operator["files"]
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    older |= {"version": 1, "checksum": checksum_of(canonical)}
    assert load(json.dumps(older).encode()) == manifest(inline())


def test_a_checkpoint_with_records_under_way_needs_a_weir_that_knows_them() -> None:
    """One without them is written as before, so that the Weir before this one reads it."""
    in_flight = replace(inline(), kind="channel", name="in/a>b.0/0/0", mode="hash")
    written = manifest(inline(), in_flight)
    assert json.loads(dump(written))["version"] == 3
    assert load(dump(written)) == written
    assert json.loads(dump(manifest(inline())))["version"] == 2
    assert json.loads(dump(replace(written, state_backend="rocksdb")))["version"] == 4
    shared = replace(inline(), inline=None, path="shared/1-1/op-0-x", mode="whole")
    assert json.loads(dump(manifest(shared)))["version"] == 5


def test_a_savepoints_manifest_comes_back_as_it_was() -> None:
    written = manifest(
        inline(), kind=CheckpointKind.SAVEPOINT, location="/s/one", source_records={"a": 7},
        operators=(OperatorSummary(OperatorId("a"), "A", 2, 128, is_source=True, files="/out"),),
    )  # fmt: skip
    assert load(dump(written)) == written


def test_an_aborted_savepoint_takes_nothing_of_another_with_it() -> None:
    """Its directory was taken, and state there may have the very names of its own."""
    store = MemoryStore()
    other = manifest(job_id=JobId("other"), kind=CheckpointKind.SAVEPOINT, location="/s/one")
    store.put("manifest", dump(other))
    store.put("1-1/sum-0-x", b"state")
    discard_savepoint(store, JOB, CheckpointId(1), AttemptNumber(1))
    assert store.list() == ["1-1/sum-0-x", "manifest"]
    discard_savepoint(store, other.job_id, CheckpointId(1), AttemptNumber(1))
    assert store.list() == []


def test_totals_are_over_all_handles() -> None:
    made = manifest(inline(b"abc"), inline(b"de", "other"))
    assert made.state_size == 5
    assert [handle.name for handle in made.handles] == ["position", "other"]


def put(store: MemoryStore, made: Manifest | Tombstone) -> None:
    store.put(JobLayout(made.job_id).manifest(made.checkpoint_id), dump(made))


def test_checkpoints_are_listed_newest_first_damaged_ones_included() -> None:
    store = MemoryStore()
    for number in (2, 10, 9):
        put(store, manifest(checkpoint_id=CheckpointId(number)))
    put(store, replace(TOMBSTONE, checkpoint_id=CheckpointId(11)))
    store.put(JobLayout(JOB).manifest(CheckpointId(9)), b"damaged")
    store.put("job-1/chk-12/1/sum-0-x", b"no manifest yet")
    checkpoints = list_checkpoints(store, JOB)
    assert [each.checkpoint_id for each in checkpoints] == [11, 10, 9, 2]
    assert isinstance(checkpoints[0].manifest, Tombstone)
    assert isinstance(checkpoints[1].manifest, Manifest)
    assert checkpoints[2].manifest is None
    assert isinstance(checkpoints[2].error, CorruptStateError)


def test_jobs_are_found_by_name_the_latest_first() -> None:
    store = MemoryStore()
    put(store, manifest(job_id=JobId("old"), completed_ms=100))
    put(store, manifest(job_id=JobId("new"), completed_ms=200))
    put(store, manifest(job_id=JobId("other"), job_name="else", completed_ms=300))
    put(store, replace(TOMBSTONE, job_id=JobId("new")))
    store.put(JobLayout(JobId("broken")).manifest(CheckpointId(1)), b"?")
    assert find_jobs(store, "flights") == ["new", "old"]
    assert find_jobs(store, "unknown") == []


def test_a_handle_is_read_from_where_it_lies() -> None:
    store = MemoryStore()
    assert read_handle(store, JOB, inline(b"abc")) == b"abc"
    assert read_handle(store, JOB, stored(store, b"x" * 100)) == b"x" * 100


def test_a_damaged_or_missing_state_file_is_named() -> None:
    store = MemoryStore()
    handle = stored(store, b"x" * 100)
    store.put("job-1/chk-1/1/sum-0-x", b"x" * 99 + b"y")
    with pytest.raises(CorruptStateError, match=r"sum-0-x.*checksum"):
        read_handle(store, JOB, handle)
    store.put("job-1/chk-1/1/sum-0-x", b"x" * 99)
    with pytest.raises(CorruptStateError, match=r"99 bytes instead of 100"):
        read_handle(store, JOB, handle)
    store.delete("job-1/chk-1/1/sum-0-x")
    with pytest.raises(CorruptStateError, match=r"sum-0-x.*missing"):
        read_handle(store, JOB, handle)
    with pytest.raises(CorruptStateError, match="position"):
        read_handle(store, JOB, replace(inline(), inline=b"smalX"))
    with pytest.raises(CorruptStateError, match="neither"):
        read_handle(store, JOB, replace(inline(), inline=None))


def test_verifying_names_every_file_that_is_not_whole() -> None:
    store = MemoryStore()
    good, bad = stored(store, b"good", "chk-1/1/a"), stored(store, b"badd", "chk-1/1/b")
    gone, empty = stored(store, b"gone", "chk-1/1/c"), stored(store, b"", "chk-1/1/d")
    verify(store, manifest(good, bad, gone, empty, inline()))
    store.put("job-1/chk-1/1/b", b"BADD")
    store.delete("job-1/chk-1/1/c")
    store.delete("job-1/chk-1/1/d")
    with pytest.raises(CorruptStateError) as caught:
        verify(store, manifest(good, bad, gone, empty, inline()))
    with pytest.raises(CorruptStateError) as looked:
        verify(store, manifest(good, bad, gone, empty, inline()), reads=False)
    assert "chk-1/1/b" not in str(looked.value)
    assert "chk-1/1/c: it is missing; job-1/chk-1/1/d: it is missing" in str(looked.value)
    store.put("job-1/chk-1/1/d", b"")
    verify(store, manifest(good, bad, empty, inline()), reads=False)
    store.put("job-1/chk-1/1/d", b"x")
    with pytest.raises(CorruptStateError, match=r"chk-1/1/d: it does not have its 0 bytes"):
        verify(store, manifest(good, bad, empty, inline()), reads=False)
    for name in ("chk-1/1/b: its checksum", "chk-1/1/c: it is missing", "chk-1/1/d: it is missing"):
        assert name in str(caught.value)
    assert "chk-1/1/a" not in str(caught.value)
