"""``weir savepoint`` and ``weir stop`` against a driver that only answers its mailbox."""

import io
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.waiting import TIMEOUT_S, wait_until
from weir import __main__ as command_line
from weir.cli import delete_savepoint, savepoint
from weir.cli.savepoint import checked_name
from weir.errors import ConfigError
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.jobmaster.savepoint_mailbox import Answer, Mailbox, SavepointRequest
from weir.protocol.deployment import Versions
from weir.protocol.elements import CheckpointKind
from weir.protocol.lineage import AttemptBase
from weir.protocol.messages import OperatorAck
from weir.storage.attempt_bases import note_base
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout, savepoint_state_file
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, OperatorSummary, Tombstone, dump, load
from weir.storage.savepoint_names import default_name
from weir.storage.store import checksum_of, store_for

JOB = JobId("sums-1a2b")
LAYOUT = JobLayout(JOB)
SOURCE = SubtaskId(OperatorId("numbers"), 0)
STATE = b'["state"]'


def manifest(
    number: int,
    *,
    attempt: int = 1,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    location: str | None = None,
) -> Manifest:
    """A checkpoint with inline state, or a savepoint with its state in a file."""
    ids = CheckpointId(number), AttemptNumber(attempt)
    path = None if location is None else savepoint_state_file(*ids, SOURCE, "splits")
    handle = StateHandle(
        "operator", "splits", len(STATE), checksum_of(STATE), path, None if path else STATE
    )
    return Manifest(
        job_id=JOB,
        job_name="sums",
        checkpoint_id=ids[0],
        parent_id=None,
        kind=kind,
        attempt=ids[1],
        triggered_ms=1_000_000 + number,
        completed_ms=1_000_043 + number,
        versions=Versions(weir="0.1.0", python="3.11", pyarrow="21.0"),
        operators=(OperatorSummary(SOURCE.operator, "Numbers", 1, 128, is_source=True),),
        acks=(OperatorAck(SOURCE, (handle,)),),
        location=location,
    )


def write_checkpoint(store: LocalStore, number: int, *, attempt: int = 1) -> None:
    store.put(LAYOUT.manifest(CheckpointId(number)), dump(manifest(number, attempt=attempt)))


def write_savepoint(
    store: LocalStore,
    number: int,
    target: str,
    *,
    kind: CheckpointKind = CheckpointKind.SAVEPOINT,
    attempt: int = 1,
) -> None:
    taken = manifest(number, kind=kind, location=target, attempt=attempt)
    own = store_for(target)
    (handle,) = taken.handles
    assert handle.path is not None
    own.put(handle.path, STATE)
    own.put(SAVEPOINT_MANIFEST, dump(taken))
    store.put(LAYOUT.manifest(CheckpointId(number)), dump(taken))


@dataclass
class Driver:
    """Takes requests in a thread of its own, as a job's driver would."""

    store: LocalStore
    does: Callable[["Driver", SavepointRequest], None]
    taken: list[SavepointRequest] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        mailbox = Mailbox(self.store, JOB)
        while not self.is_over.wait(0.02):
            for request in mailbox.take(time.time_ns() // 1_000_000):
                self.taken.append(request)
                self.does(self, request)

    def answer(self, request: SavepointRequest, **said: str) -> None:
        ok = "error" not in said
        Mailbox(self.store, JOB).answer(
            request.request_id, Answer(request.request_id, ok=ok, **said)
        )


def save(driver: Driver, request: SavepointRequest) -> None:
    """Take the savepoint; a stop ends the job after it."""
    write_savepoint(driver.store, 7, request.target, kind=request.kind)
    driver.answer(request, uri=request.target)
    if request.kind is not CheckpointKind.SAVEPOINT:
        driver.store.put(LAYOUT.finished, b"")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "checkpoints")
    made.create_if_absent(LAYOUT.attempt(AttemptNumber(1)), b"")
    note_base(made, JOB, AttemptBase(AttemptNumber(1), CheckpointId(1)))
    return made


@pytest.fixture
def start(
    store: LocalStore,
) -> Iterator[Callable[[Callable[[Driver, SavepointRequest], None]], Driver]]:
    """Start a driver that does this with every request."""
    threads: list[tuple[Driver, threading.Thread]] = []

    def starting(does: Callable[[Driver, SavepointRequest], None]) -> Driver:
        driver = Driver(store, does)
        threads.append((driver, threading.Thread(target=driver.run)))
        threads[-1][1].start()
        return driver

    yield starting
    for driver, thread in threads:
        driver.is_over.set()
        thread.join()


Start = Callable[[Callable[[Driver, SavepointRequest], None]], Driver]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def weir(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Weir":
    monkeypatch.setattr(savepoint, "LOOK_S", 0.01)
    monkeypatch.setattr(savepoint, "END_WAIT_S", 0.3)
    monkeypatch.setattr(savepoint, "UNTAKEN_WARNING_S", 0.1)

    def run(*arguments: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["weir", *map(str, arguments)])
        code = command_line.main()
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


Weir = Callable[..., Said]


def requests_left(store: LocalStore) -> list[str]:
    return store.list(LAYOUT.requests)


def test_a_savepoint_prints_its_uri_and_nothing_else(
    store: LocalStore, start: Start, weir: Weir
) -> None:
    driver = start(save)
    done = weir("savepoint", store.root / JOB, "--name", "one")
    assert (done.code, done.out) == (0, f"{store.root}/savepoints/{JOB}/one\n")
    assert (
        done.err.splitlines()
        == [
            f"weir: requested from job {JOB}: a savepoint",
            "weir: the driver has taken the request",
            f"weir: the savepoint of job {JOB} is taken: checkpoint 7, 9 B, in 43 ms",
        ]
        or "the driver has taken the request" not in done.err
    )  # It may answer between two looks.
    assert [request.kind for request in driver.taken] == [CheckpointKind.SAVEPOINT]
    assert requests_left(store) == []


def test_a_savepoint_goes_where_it_is_told(
    store: LocalStore, start: Start, weir: Weir, tmp_path: Path
) -> None:
    start(save)
    done = weir("savepoint", store.root / JOB, "--to", tmp_path / "backup", "--name", "v1.2")
    assert done.out == f"{tmp_path}/backup/v1.2\n"


@pytest.mark.parametrize(
    ("options", "kind"),
    [([], CheckpointKind.STOP_SUSPEND), (["--drain"], CheckpointKind.STOP_DRAIN)],
)
def test_a_stop_is_done_when_the_job_has_ended(
    store: LocalStore, start: Start, weir: Weir, options: list[str], kind: CheckpointKind
) -> None:
    driver = start(save)
    done = weir("stop", store.root / JOB, *options)
    assert done.code == 0
    assert Path(done.out.strip()).is_dir()
    assert done.err.endswith("weir: the job has ended\n")
    assert [request.kind for request in driver.taken] == [kind]


def test_a_stop_that_fails_after_its_savepoint_names_it(
    store: LocalStore, start: Start, weir: Weir
) -> None:
    def go_on(driver: Driver, request: SavepointRequest) -> None:
        write_savepoint(driver.store, 7, request.target, kind=request.kind)
        driver.answer(request, uri=request.target)
        time.sleep(0.1)
        driver.store.put(LAYOUT.attempt(AttemptNumber(2)), b"")

    start(go_on)
    done = weir("stop", store.root / JOB, "--name", "one", "--timeout", "1s")
    uri = f"{store.root}/savepoints/{JOB}/one"
    assert (done.code, done.out) == (1, f"{uri}\n")
    assert "the stopping attempt failed; the next attempt completes the stop" in done.err
    assert f"The savepoint was taken and is kept: {uri}" in done.err


def test_a_savepoint_that_fails_says_why(store: LocalStore, start: Start, weir: Weir) -> None:
    start(lambda driver, request: driver.answer(request, error="the savepoint expired"))
    done = weir("savepoint", store.root / JOB)
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith("weir: the savepoint expired\n")


def test_an_error_with_a_uri_names_the_savepoint_that_is_kept(
    store: LocalStore, start: Start, weir: Weir
) -> None:
    start(lambda driver, request: driver.answer(request, error="no end", uri="/backup/one"))
    done = weir("stop", store.root / JOB)
    assert done.code == 1
    assert "the savepoint was taken and is kept: /backup/one" in done.err


def test_a_savepoint_whose_driver_went_before_it_answered_is_found(
    store: LocalStore, start: Start, weir: Weir
) -> None:
    """The first driver completes the savepoint and dies; the next finds the directory in use."""

    def find_in_use(driver: Driver, request: SavepointRequest) -> None:
        write_savepoint(driver.store, 7, request.target)
        driver.answer(request, error=f"{request.target} is in use")

    start(find_in_use)
    done = weir("savepoint", store.root / JOB, "--name", "one")
    assert (done.code, done.out) == (0, f"{store.root}/savepoints/{JOB}/one\n")


def test_a_directory_without_a_decision_is_no_savepoint(
    store: LocalStore, start: Start, weir: Weir
) -> None:
    def abort(driver: Driver, request: SavepointRequest) -> None:
        write_savepoint(driver.store, 7, request.target)
        driver.store.delete(LAYOUT.manifest(CheckpointId(7)))
        driver.answer(request, error="aborted")

    start(abort)
    assert weir("savepoint", store.root / JOB).code == 1


def test_a_stop_whose_driver_never_answers_is_known_by_its_savepoint(
    store: LocalStore, start: Start, weir: Weir
) -> None:
    def end(driver: Driver, request: SavepointRequest) -> None:
        write_savepoint(driver.store, 7, request.target, kind=request.kind)
        driver.store.put(LAYOUT.finished, b"")

    start(end)
    assert weir("stop", store.root / JOB).code == 0


def test_a_job_that_finishes_first_is_told_so(store: LocalStore, start: Start, weir: Weir) -> None:
    start(lambda driver, request: driver.store.put(LAYOUT.finished, b""))
    done = weir("savepoint", store.root / JOB)
    assert done.code == 1
    assert "the job finished before its savepoint" in done.err


def test_a_job_without_a_driver_is_said_to_be_so_and_nothing_is_left(
    store: LocalStore, weir: Weir
) -> None:
    done = weir("savepoint", store.root / JOB, "--timeout", "300ms")
    assert (done.code, done.out) == (3, "")
    assert "no driver has taken the request for 0.1 s. Either the job does not run" in done.err
    assert "a control plane runs it" in done.err
    assert "it is withdrawn" in done.err
    assert requests_left(store) == []


def test_a_savepoint_that_takes_too_long_may_still_come(
    store: LocalStore, start: Start, weir: Weir
) -> None:
    start(lambda driver, request: None)
    done = weir("savepoint", store.root / JOB, "--name", "one", "--timeout", "300ms")
    assert done.code == 3
    assert f"may still complete it: in {store.root}/savepoints/{JOB}/one" in done.err
    assert requests_left(store) == []


def test_ctrl_c_withdraws_the_request(store: LocalStore) -> None:
    asking = subprocess.Popen(
        [sys.executable, "-m", "weir", "savepoint", store.root / JOB],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: requests_left(store), "the request is posted")
    asking.send_signal(signal.SIGINT)
    out, err = asking.communicate(timeout=TIMEOUT_S)
    assert (asking.returncode, out) == (130, "")
    assert "the request is withdrawn" in err
    assert "Traceback" not in err
    assert requests_left(store) == []


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["savepoint"], "give the job to take a savepoint of"),
        (["savepoint", "{job}", "--delete", "{job}"], "give the job to take a savepoint of"),
        (["savepoint", "{storage}"], "is not the directory of one job; give one of "),
        (["savepoint", "{job}/chk-1"], "is a checkpoint; give the job's directory"),
        (["savepoint", "{storage}/nope"], "there is nothing at"),
        (["stop", "{job}", "--name", "../up"], "a savepoint cannot be named '../up'"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    store: LocalStore, weir: Weir, arguments: list[str], advice: str
) -> None:
    given = [a.format(storage=store.root, job=store.root / JOB) for a in arguments]
    done = weir(*given)
    assert (done.code, done.out) == (2, "")
    assert advice in done.err
    assert requests_left(store) == []


def test_a_job_that_has_finished_is_not_asked(store: LocalStore, weir: Weir) -> None:
    store.put(LAYOUT.finished, b"")
    done = weir("stop", store.root / JOB)
    assert done.code == 2
    assert "has finished" in done.err


def test_a_name_in_use_is_refused_before_anybody_is_asked(store: LocalStore, weir: Weir) -> None:
    write_savepoint(store, 7, f"{store.root}/savepoints/{JOB}/one")
    done = weir("savepoint", store.root / JOB, "--name", "one")
    assert done.code == 2
    assert "is in use; choose another --name" in done.err


@pytest.mark.parametrize("name", ["a", "before-upgrade_2.1", "x" * 80, "CHK-1"])
def test_names_are_plain(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "a b", "é", "x" * 81, "chk-1", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be named"):
        checked_name(name)


@pytest.mark.parametrize("job", ["sums-1a2b", "Zähler des Tages", "x" * 200, "chk-1", "…"])
def test_default_names_are_names_and_differ(job: str) -> None:
    names = {default_name(job, 0.0) for _ in range(20)}
    assert len(names) > 10
    for name in names:
        assert checked_name(name) == name


# Listing and looking.


@pytest.fixture
def taken(store: LocalStore) -> Path:
    """Savepoint 2 between the checkpoints 1 and 3."""
    write_checkpoint(store, 1)
    location = store.root / "savepoints" / JOB / "one"
    write_savepoint(store, 2, str(location))
    write_checkpoint(store, 3)
    return location


def listed(weir: Weir, store: LocalStore) -> dict[int, dict[str, object]]:
    done = weir("checkpoints", store.root, "--json")
    (job,) = json.loads(done.out)["jobs"]
    return {c["checkpoint_id"]: c for c in job["checkpoints"]}


def test_savepoints_are_listed_by_name_and_place(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    done = weir("checkpoints", store.root)
    assert done.code == 0
    (line,) = (line for line in done.out.splitlines() if " one " in line)
    assert line.split()[:3] == ["2", "one", "savepoint"]
    assert line.split()[-1] == "whole"
    assert f"savepoint 2: {taken}" in done.out.splitlines()
    assert listed(weir, store)[2]["savepoint"] == "one"
    assert listed(weir, store)[3]["savepoint"] is None


def test_what_the_job_went_back_behind_is_abandoned(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    base = AttemptBase(AttemptNumber(2), CheckpointId(4), CheckpointId(1), AttemptNumber(1))
    note_base(store, JOB, base)
    write_checkpoint(store, 4, attempt=2)
    abandoned = {number: c["abandoned"] for number, c in listed(weir, store).items()}
    assert abandoned == {4: False, 3: True, 2: True, 1: False}
    shown = weir("checkpoints", store.root).out
    assert shown.count("whole, abandoned") == 2
    assert "abandoned: the job was restored from an older checkpoint" in shown


def test_a_damaged_note_of_an_attempt_is_told_and_hides_no_checkpoint(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    store.put(LAYOUT.base(AttemptNumber(2), CheckpointId(1)), b"{")
    done = weir("checkpoints", store.root)
    assert done.code == 0
    assert "which checkpoints are abandoned is not known" in done.out
    assert " one " in done.out


def test_a_savepoint_that_was_moved_is_no_damage_and_is_inspected_where_it_is(
    store: LocalStore, taken: Path, weir: Weir, tmp_path: Path
) -> None:
    moved = taken.rename(tmp_path / "chosen")
    done = weir("checkpoints", store.root)
    assert done.code == 0
    assert f"savepoint 2 is not in {taken} any more; if it was moved" in done.out
    inside = weir("inspect", store.root / JOB / "chk-2")
    assert inside.code == 2
    assert "give the directory where it is now" in inside.err
    shown = weir("inspect", moved)
    lines = shown.out.splitlines()
    assert shown.code == 0
    assert lines[0] == "savepoint chosen, checkpoint 2 of sums (sums-1a2b)"
    assert lines[1] == f"in {moved}; it was taken in {taken}"
    assert any(line.split()[:1] == ["numbers-0"] and "yes" in line for line in lines)
    state = weir("inspect", moved, "--state", "numbers", "--json")
    assert json.loads(state.out)["rows"][0]["values"] == {"item": "state"}


def test_a_savepoint_is_inspected_by_its_number_too(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    by_number, by_place = (
        json.loads(weir("inspect", uri, "--json").out)
        for uri in (store.root / JOB / "chk-2", taken)
    )
    assert by_number == by_place
    assert by_place["uri"] == str(taken)


def test_a_damaged_savepoint_fails_the_listing(store: LocalStore, taken: Path, weir: Weir) -> None:
    (file,) = taken.glob("*/*")
    file.write_bytes(b"x")
    done = weir("checkpoints", store.root)
    assert done.code == 1
    assert "checkpoint 2 is damaged: " in done.out
    assert weir("inspect", taken).code == 1


def test_a_savepoint_of_a_newer_version_is_refused_by_number(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    file = taken / SAVEPOINT_MANIFEST
    file.write_text(file.read_text().replace('"version": 2', '"version": 99'))
    done = weir("inspect", taken)
    assert done.code == 2
    assert "manifest version 99" in done.err


def test_listing_the_savepoint_itself_says_what_to_do_with_it(taken: Path, weir: Weir) -> None:
    done = weir("checkpoints", taken)
    assert done.code == 2
    assert f"weir inspect {taken}" in done.err


# Deleting.


def test_deleting_takes_its_directory_and_leaves_a_note_of_the_number(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    done = weir("savepoint", "--delete", taken, "--yes")
    assert (done.code, done.out) == (0, "")
    assert "savepoint one of sums (sums-1a2b), checkpoint 2, savepoint: taken" in done.err
    assert not taken.exists()
    path = LAYOUT.manifest(CheckpointId(2))
    assert isinstance(load(store.read(path), path), Tombstone)
    after = listed(weir, store)
    assert (after[2]["condition"], after[1]["condition"]) == ("given up", "whole")
    assert "it was a savepoint, which was deleted on request" in weir("checkpoints", store.root).out


def test_deleting_by_number_is_the_same(store: LocalStore, taken: Path, weir: Weir) -> None:
    assert weir("savepoint", "--delete", store.root / JOB / "chk-2", "--yes").code == 0
    assert not taken.exists()


def test_deleting_a_moved_savepoint_gives_its_number_up_as_well(
    store: LocalStore, taken: Path, weir: Weir, tmp_path: Path
) -> None:
    moved = taken.rename(tmp_path / "moved")
    assert weir("savepoint", "--delete", moved, "--yes").code == 0
    assert not moved.exists()
    assert listed(weir, store)[2]["condition"] == "given up"


def test_the_number_of_a_savepoint_that_is_gone_can_be_given_up(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    shutil.rmtree(taken)
    done = weir("savepoint", "--delete", store.root / JOB / "chk-2", "--yes")
    assert done.code == 0
    assert "only the job's note of it is deleted" in done.err
    assert listed(weir, store)[2]["condition"] == "given up"


def test_a_savepoint_whose_job_is_not_known_here_is_deleted_by_itself(
    store: LocalStore, taken: Path, weir: Weir, tmp_path: Path
) -> None:
    elsewhere = Path(shutil.copytree(taken, tmp_path / "elsewhere"))
    shutil.rmtree(store.root)
    done = weir("savepoint", "--delete", elsewhere, "--yes")
    assert done.code == 0
    assert "only this directory is deleted" in done.err
    assert not elsewhere.exists()


def test_deleting_a_copy_leaves_the_savepoint(store: LocalStore, taken: Path, weir: Weir) -> None:
    copy = Path(shutil.copytree(taken, taken.with_name("copy")))
    assert weir("savepoint", "--delete", copy, "--yes").code == 0
    assert not copy.exists()
    assert listed(weir, store)[2]["condition"] == "whole"


def test_deleting_leaves_what_is_not_the_savepoints(taken: Path, weir: Weir) -> None:
    (taken / "notes.txt").write_text("mine")
    done = weir("savepoint", "--delete", taken, "--yes")
    assert done.code == 0
    assert (taken / "notes.txt").exists()
    assert "1 other file, such as notes.txt" in done.err
    assert not (taken / SAVEPOINT_MANIFEST).exists()


@pytest.mark.parametrize("uri", ["{job}/chk-1", "{job}/chk-9", "{job}", "{storage}", "nowhere"])
def test_what_is_no_savepoint_is_not_deleted(
    store: LocalStore, taken: Path, weir: Weir, uri: str
) -> None:
    before = store.list()
    done = weir(
        "savepoint", "--delete", uri.format(job=store.root / JOB, storage=store.root), "--yes"
    )
    assert done.code == 2
    assert store.list() == before


def test_without_a_terminal_deleting_needs_yes(
    taken: Path, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    done = weir("savepoint", "--delete", taken)
    assert done.code == 2
    assert "give --yes" in done.err
    assert taken.exists()


def test_a_savepoint_that_the_job_has_nothing_else_but_is_not_deleted(
    store: LocalStore, taken: Path, weir: Weir
) -> None:
    base = AttemptBase(AttemptNumber(2), CheckpointId(4), CheckpointId(2), AttemptNumber(1))
    note_base(store, JOB, base)
    done = weir("savepoint", "--delete", taken, "--yes")
    assert done.code == 2
    assert "attempt 2 of job sums-1a2b restored savepoint 2" in done.err
    write_checkpoint(store, 4, attempt=2)
    assert weir("savepoint", "--delete", taken, "--yes").code == 0


def test_a_savepoint_that_comes_to_be_needed_while_one_is_asked_is_kept(
    store: LocalStore, taken: Path, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = AttemptBase(AttemptNumber(2), CheckpointId(4), CheckpointId(2), AttemptNumber(1))

    def confirmed(question: str, without_terminal: str) -> bool:
        note_base(store, JOB, base)
        return True

    monkeypatch.setattr(delete_savepoint, "confirmed", confirmed)
    before = store.read(LAYOUT.manifest(CheckpointId(2)))
    done = weir("savepoint", "--delete", taken)
    assert done.code == 2
    assert "attempt 2 of job sums-1a2b restored savepoint 2" in done.err
    assert load(store.read(LAYOUT.manifest(CheckpointId(2)))) == load(before)
    assert listed(weir, store)[2]["condition"] == "whole"


def test_a_savepoint_that_another_deletes_meanwhile_is_deleted_all_the_same(
    taken: Path, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirmed(question: str, without_terminal: str) -> bool:
        monkeypatch.undo()
        assert delete_savepoint.run(str(taken), is_sure=True) == delete_savepoint.DELETED
        return True

    monkeypatch.setattr(delete_savepoint, "confirmed", confirmed)
    assert weir("savepoint", "--delete", taken).code == 0
    assert not taken.exists()


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_savepoint_that_a_fork_has_nothing_else_but_is_not_deleted(
    store: LocalStore, taken: Path, weir: Weir, tmp_path: Path, *, is_moved: bool
) -> None:
    if is_moved:
        taken = taken.rename(tmp_path / "moved")
    fork = JobId("fork-1")
    own = AttemptBase(AttemptNumber(1), CheckpointId(3), CheckpointId(2), AttemptNumber(1))
    store.put(JobLayout(fork).attempt(AttemptNumber(1)), b"")
    note_base(store, fork, replace(own, restored_job=JOB))
    done = weir("savepoint", "--delete", taken, "--yes")
    assert done.code == 2
    assert "attempt 1 of job fork-1 restored savepoint 2 of job sums-1a2b" in done.err
    store.put(JobLayout(fork).finished, b"")
    assert weir("savepoint", "--delete", taken, "--yes").code == 0
