"""``weir checkpoints`` and ``weir inspect`` on storages that the storage's own writers made."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.forks import run_python
from weir.cli.inspect import select
from weir.common import Types
from weir.common.batch import Batch
from weir.errors import RestoreError
from weir.graph.key_groups import key_group
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
from weir.protocol.elements import CheckpointKind, Records
from weir.protocol.messages import GateAlignment, OperatorAck, SnapshotMetrics, Switch
from weir.state.backend import KeyedStateBackend
from weir.state.channel_state import encode_records
from weir.state.descriptors import ValueStateDescriptor
from weir.state.operator_state import BroadcastState, OperatorListState
from weir.state.snapshot import write_snapshot
from weir.storage.layout import JobLayout, in_job
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, OperatorSummary, Tombstone, dump
from weir.storage.writer import StoredSnapshotWriter

JOB = JobId("sums-1a2b")
GROUPS = 128
COUNTS = {"even": 20, "odd": 22, ("a", 1): 3}


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


def weir(*arguments: str | Path) -> Finished:
    environment = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"} | {"TZ": "UTC"}
    done = run_python("weir", *arguments, env=environment)
    return Finished(done.returncode, done.stdout, done.stderr)


def writer(
    store: LocalStore, number: int, operator: str, *, inline: int = 1_000_000
) -> StoredSnapshotWriter:
    return StoredSnapshotWriter(
        store,
        JOB,
        AttemptNumber(1),
        CheckpointId(number),
        SubtaskId(OperatorId(operator), 0),
        inline_max=inline,
        cancelled=lambda: False,
    )


def keyed_handles(store: LocalStore, number: int, *, inline: int) -> tuple[StateHandle, ...]:
    backend = KeyedStateBackend(KeyGroupRange(0, GROUPS - 1), GROUPS)
    state = backend.get_state(ValueStateDescriptor("count", Types.LONG()))
    for key, count in COUNTS.items():
        backend.set_current_key(key)
        state.update(count)
    frozen = backend.freeze(CheckpointId(number))
    return write_snapshot(frozen, writer(store, number, "sum", inline=inline))


def source_handles(store: LocalStore, number: int) -> tuple[StateHandle, ...]:
    out = writer(store, number, "numbers")
    splits = OperatorListState("splits")
    splits.add_all([{"next": 7}, b"raw"])
    rules = BroadcastState("rules")
    rules.put("limit", 3)
    return (*splits.freeze().write(out), *rules.freeze().write(out))


def under_way_handles(store: LocalStore, number: int) -> tuple[StateHandle, ...]:
    """One record at the input of the sum, and one at an output of it."""
    out = writer(store, number, "sum")
    data = encode_records([Records(Batch.of_rows([("a", 1)]), 1, 700)], 1 << 20, pickles=True)
    names = ("in/numbers>sum.0/0/0", "out/sum>sink.0/0/0")
    return tuple(out.put("channel", name, data, mode="hash") for name in names)


def put_checkpoint(
    store: LocalStore, number: int, *, inline: int = 1_000_000, is_unaligned: bool = False
) -> None:
    in_flight = under_way_handles(store, number) if is_unaligned else ()
    gate = GateAlignment(0, ("numbers-0", "numbers-1"), (0.0, 12.0), (12.0, 0.0), (2_000, 0))
    metrics = SnapshotMetrics(5.0, 12.0, 2.0, 8.0, gates=(gate,))
    if in_flight:  # The barrier of numbers-1 overtook a record, its own another.
        metrics = replace(
            metrics,
            unaligned=True,
            switched=Switch.INPUT,
            switched_ms=503.0,
            bytes_persisted_in_flight=sum(handle.size for handle in in_flight),
            bytes_persisted_at_outputs=in_flight[-1].size,
            gates=(replace(gate, in_flight=(0, 700)),),
        )
    versions = Versions(weir="0.1.0", python="3.11", pyarrow="21.0")
    manifest = Manifest(
        job_id=JOB,
        job_name="sums",
        checkpoint_id=CheckpointId(number),
        parent_id=CheckpointId(number - 1) if number > 1 else None,
        kind=CheckpointKind.CHECKPOINT,
        attempt=AttemptNumber(1),
        triggered_ms=1_000_000,
        completed_ms=1_000_043,
        versions=versions,
        operators=(
            OperatorSummary(OperatorId("numbers"), "Numbers", 1, GROUPS),
            OperatorSummary(OperatorId("sum"), "Sum", 1, GROUPS),
        ),
        acks=(
            OperatorAck(SubtaskId(OperatorId("numbers"), 0), source_handles(store, number)),
            OperatorAck(
                SubtaskId(OperatorId("sum"), 0),
                (*keyed_handles(store, number, inline=inline), *in_flight),
                metrics,
            ),
        ),
    )
    store.put(JobLayout(JOB).manifest(CheckpointId(number)), dump(manifest))


def give_up(store: LocalStore, number: int) -> None:
    tombstone = Tombstone(
        job_id=JOB,
        checkpoint_id=CheckpointId(number),
        attempt=AttemptNumber(1),
        given_up_ms=2_000_000,
        reason="the storage was full",
    )
    store.put(JobLayout(JOB).manifest(CheckpointId(number)), dump(tombstone))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Checkpoint 1 inline, checkpoint 2 with its keyed state in a file."""
    made = LocalStore(tmp_path / "checkpoints")
    put_checkpoint(made, 1)
    put_checkpoint(made, 2, inline=0)
    return made


def state_file(store: LocalStore) -> Path:
    handle = keyed_handles(store, 2, inline=0)[0]
    assert handle.path is not None
    return store.root / in_job(JOB, handle.path)


def test_a_storage_lists_its_jobs_and_their_checkpoints_newest_first(store: LocalStore) -> None:
    done = weir("checkpoints", store.root)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0] == f"sums  {store.root}/sums-1a2b"
    assert [line.split()[0] for line in lines[3:5]] == ["2", "1"]
    assert "1970-01-01 00:16:40+00:00" in lines[3]
    assert "43 ms" in lines[3]
    assert lines[3].rstrip().endswith("whole")
    assert "\x1b" not in done.out


def test_a_jobs_directory_lists_the_same_checkpoints(store: LocalStore) -> None:
    whole = json.loads(weir("checkpoints", store.root, "--json").out)
    of_job = json.loads(weir("checkpoints", f"{store.root / JOB}/", "--json").out)
    assert of_job == whole
    (job,) = whole["jobs"]
    assert [(c["checkpoint_id"], c["parent_id"]) for c in job["checkpoints"]] == [(2, 1), (1, None)]


def test_a_damaged_state_file_is_told_with_its_name_and_fails_the_command(
    store: LocalStore,
) -> None:
    file = state_file(store)
    file.write_bytes(b"x" + file.read_bytes()[1:])
    done = weir("checkpoints", store.root)
    assert done.code == 1
    assert "checkpoint 2 is damaged: " in done.out
    assert file.name in done.out
    assert "its checksum does not match" in done.out


def test_without_verifying_no_state_file_is_read(store: LocalStore) -> None:
    state_file(store).unlink()
    done = weir("checkpoints", store.root, "--no-verify", "--json")
    conditions = [c["condition"] for c in json.loads(done.out)["jobs"][0]["checkpoints"]]
    assert (done.code, conditions) == (0, ["not verified", "not verified"])


def test_what_was_given_up_says_why_and_is_no_damage(store: LocalStore) -> None:
    give_up(store, 3)
    done = weir("checkpoints", store.root)
    assert done.code == 0
    assert "checkpoint 3 was given up at 1970-01-01 00:33:20+00:00: the storage was full" in (
        done.out
    )


def test_a_manifest_that_cannot_be_read_is_listed_as_damaged(store: LocalStore) -> None:
    store.put(JobLayout(JOB).manifest(CheckpointId(4)), b"{")
    done = weir("checkpoints", store.root, "--json")
    newest = json.loads(done.out)["jobs"][0]["checkpoints"][0]
    assert (done.code, newest["checkpoint_id"], newest["condition"]) == (1, 4, "damaged")
    assert "is no manifest" in newest["reason"]


def test_a_job_without_checkpoints_is_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create_if_absent(JobLayout(JOB).attempt(AttemptNumber(1)), b"")
    done = weir("checkpoints", tmp_path)
    assert done.code == 0
    assert "no checkpoint" in done.out


@pytest.mark.parametrize(
    ("uri", "advice"),
    [
        ("nowhere", "there is nothing at"),
        ("s3://bucket/checkpoints", "is not supported"),
    ],
)
def test_a_uri_that_names_no_storage_is_refused(tmp_path: Path, uri: str, advice: str) -> None:
    done = weir("checkpoints", uri if "://" in uri else tmp_path / uri)
    assert done.code == 2
    assert advice in done.err
    assert "Traceback" not in done.err


def test_a_directory_without_jobs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of Weir's")
    done = weir("checkpoints", tmp_path)
    assert done.code == 2
    assert "holds no job" in done.err


def test_a_checkpoint_shows_its_operators_their_state_and_channels(store: LocalStore) -> None:
    done = weir("inspect", store.root / JOB / "chk-2")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "checkpoint 2 of sums (sums-1a2b)"
    assert "sum Sum, parallelism 1, max parallelism 128" in lines
    assert "sum-0 5 ms 12 ms 2 ms 8 ms 0 B 0 B" in lines
    assert "sum-0 numbers-1 0 12 ms 0 ms 0 B 0 B" in lines
    (keyed,) = (line for line in lines if line.startswith("sum-0 count keyed 0-127 3 "))
    assert keyed.endswith("yes")
    assert "chk-2/1/sum-0-" in keyed


def test_an_unaligned_checkpoint_shows_its_data_in_flight_and_when_it_timed_out(
    store: LocalStore,
) -> None:
    put_checkpoint(store, 3, is_unaligned=True)
    done = weir("inspect", store.root / JOB / "chk-3")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    (timings,) = (line for line in lines if line.startswith("sum-0 5 ms "))
    assert timings.startswith("sum-0 5 ms 12 ms (unaligned after 503 ms, timed out at input) 2 ms")
    assert timings.count(" at outputs)") == 1
    assert "sum-0 numbers-0 0 0 ms 12 ms 2.0 kB 0 B" in lines
    assert "sum-0 numbers-1 0 12 ms 0 ms 0 B 700 B" in lines
    shown = json.loads(weir("inspect", store.root / JOB / "chk-3", "--json").out)
    subtask = shown["subtasks"][1]
    assert (subtask["unaligned"], subtask["switched"], subtask["switched_ms"]) == (
        True, "input", 503.0
    )  # fmt: skip
    assert subtask["bytes_persisted_in_flight"] == 2 * subtask["bytes_persisted_at_outputs"] > 0
    assert [channel["in_flight"] for channel in subtask["channels"]] == [0, 700]
    assert shown["bytes_persisted_in_flight"] == subtask["bytes_persisted_in_flight"]
    listed = weir("checkpoints", store.root / JOB)
    kinds = [" ".join(line.split()).split(" 19")[0] for line in listed.out.splitlines()]
    assert {"3 unaligned checkpoint", "2 checkpoint"} <= set(kinds)


def test_inspecting_as_json_holds_every_piece_with_its_rows_and_checksum(
    store: LocalStore,
) -> None:
    done = weir("inspect", store.root / JOB / "chk-1", "--json")
    shown = json.loads(done.out)
    pieces = {
        (s["operator"], p["name"]): (p["kind"], p["mode"], p["rows"], p["whole"], p["key_groups"])
        for s in shown["subtasks"]
        for p in s["state"]
    }
    assert pieces == {
        ("numbers", "splits"): ("operator", "split", 2, True, None),
        ("numbers", "rules"): ("operator", "broadcast", 1, True, None),
        ("sum", "count"): ("keyed", None, 3, True, [0, 127]),
    }
    channels = shown["subtasks"][1]["channels"]
    assert [(c["upstream"], c["blocked_ms"]) for c in channels] == [
        ("numbers-0", 12.0),
        ("numbers-1", 0.0),
    ]


def test_inspecting_a_damaged_checkpoint_names_the_piece_and_fails(store: LocalStore) -> None:
    state_file(store).unlink()
    done = weir("inspect", store.root / JOB / "chk-2")
    assert done.code == 1
    assert "sum-0: " in done.out
    assert "it is missing" in done.out
    assert weir("inspect", store.root / JOB / "chk-2", "--no-verify").code == 0


def test_keyed_state_is_printed_with_its_keys_decoded(store: LocalStore) -> None:
    done = weir("inspect", store.root / JOB / "chk-2", "--state", "sum/count", "--json")
    shown = json.loads(done.out)
    rows = sorted((r["values"] for r in shown["rows"]), key=lambda row: row["value"])
    assert rows == [
        {"key_group": key_group(("a", 1), GROUPS), "key": ["a", 1], "value": 3},
        {"key_group": key_group("even", GROUPS), "key": "even", "value": 20},
        {"key_group": key_group("odd", GROUPS), "key": "odd", "value": 22},
    ]
    assert shown["is_more"] is False


def test_a_limit_cuts_the_rows_and_says_so(store: LocalStore) -> None:
    done = weir("inspect", store.root / JOB / "chk-1", "--state", "sum", "--limit", "2")
    assert done.code == 0
    assert sum(line.startswith("sum-0") for line in done.out.splitlines()) == 2
    assert "(the first 2; --limit shows more)" in done.out


def test_operator_state_is_printed_item_by_item(store: LocalStore) -> None:
    shown = json.loads(
        weir("inspect", store.root / JOB / "chk-1", "--state", "numbers", "--json").out
    )
    assert [(r["state"], r["values"]) for r in shown["rows"]] == [
        ("splits", {"item": {"next": 7}}),
        ("splits", {"item": {"base64": "cmF3"}}),
        ("rules", {"key": "limit", "value": 3}),
    ]


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ("nope", "has no operator nope; it has numbers, sum"),
        ("sum/nope", "operator sum has no state nope; it has count"),
    ],
)
def test_state_that_is_not_there_is_refused_with_what_there_is(
    store: LocalStore, wanted: str, advice: str
) -> None:
    done = weir("inspect", store.root / JOB / "chk-1", "--state", wanted)
    assert done.code == 2
    assert advice in done.err


def test_an_operator_whose_uid_has_a_slash_is_found() -> None:
    uid = OperatorId("a/b")
    handle = StateHandle("keyed", "state.count", 0, "", inline=b"")
    manifest = Manifest(
        job_id=JOB,
        job_name="sums",
        checkpoint_id=CheckpointId(1),
        parent_id=None,
        kind=CheckpointKind.CHECKPOINT,
        attempt=AttemptNumber(1),
        triggered_ms=0,
        completed_ms=0,
        versions=Versions("0", "3", "1"),
        operators=(OperatorSummary(uid, "A", 1, GROUPS),),
        acks=(OperatorAck(SubtaskId(uid, 0), (handle,)),),
    )
    selected = [(SubtaskId(uid, 0), handle)]
    assert select(manifest, "a/b") == select(manifest, "a/b/count") == selected
    with pytest.raises(RestoreError, match="has no operator a; it has a/b"):
        select(manifest, "a/c")


@pytest.mark.parametrize(
    ("below", "advice"),
    [
        ("", "there is no checkpoint or savepoint at"),
        ("sums-1a2b", "there is no checkpoint or savepoint at"),
        ("sums-1a2b/chk-99", "there is no checkpoint 99 of job sums-1a2b"),
        ("sums-1a2b/chk-3", "checkpoint 3 was given up: the storage was full"),
    ],
)
def test_inspect_takes_one_completed_checkpoint(store: LocalStore, below: str, advice: str) -> None:
    give_up(store, 3)
    done = weir("inspect", store.root / below)
    assert done.code == 2
    assert advice in done.err
