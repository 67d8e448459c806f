"""The mailbox by which another process asks a job for a savepoint."""

import json
from dataclasses import replace

import pytest

from weir.errors import ProtocolError, StorageError
from weir.ids import JobId
from weir.jobmaster import savepoint_mailbox
from weir.jobmaster.savepoint_mailbox import (
    ANSWER_KEPT_MS,
    FRESH_MS,
    NEW_MAX,
    Answer,
    Mailbox,
    SavepointRequest,
)
from weir.protocol.elements import CheckpointKind
from weir.storage.layout import JobLayout
from weir.storage.memory import MemoryStore

JOB = JobId("sums-1a2b")
ASKED = SavepointRequest("r1", CheckpointKind.SAVEPOINT, "/backup/one", expires_ms=1_000)
DONE = Answer("r1", ok=True, uri="/backup/one")


class Post:
    """One storage, an asker, and drivers that come and go."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.asker = Mailbox(self.store, JOB)
        self.driver = self.new_driver()

    def new_driver(self) -> Mailbox:
        return Mailbox(self.store, JOB)

    @property
    def files(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.store.list()]


def test_a_request_is_taken_once_and_its_answer_ends_it() -> None:
    post = Post()
    post.asker.post(ASKED)
    assert not post.asker.was_taken("r1")
    assert post.driver.take(0) == [ASKED]
    assert post.driver.take(1) == []
    assert post.asker.was_taken("r1")
    assert post.asker.await_answer("r1") is None
    post.driver.answer("r1", DONE)
    assert post.files == ["r1.answer.json"]
    assert post.asker.await_answer("r1") == DONE
    post.asker.withdraw("r1")
    assert post.files == []


def test_the_next_driver_takes_what_its_predecessor_did_not_answer() -> None:
    post = Post()
    post.asker.post(ASKED)
    post.driver.take(0)
    assert post.new_driver().take(1) == [ASKED]


def test_an_answered_request_is_not_taken_by_the_next_driver() -> None:
    post = Post()
    post.asker.post(ASKED)
    post.driver.take(0)
    post.driver.answer("r1", DONE)
    assert post.new_driver().take(1) == []


def test_a_withdrawn_request_is_not_taken_and_not_answered() -> None:
    post = Post()
    post.asker.post(ASKED)
    post.asker.withdraw("r1")
    assert post.driver.take(0) == []

    post.asker.post(ASKED)
    post.driver.take(0)
    post.asker.withdraw("r1")
    post.driver.answer("r1", DONE)
    assert post.files == []


@pytest.mark.parametrize("asker_is_ahead_ms", [-3_600_000, 3_600_000])
def test_a_request_that_comes_while_the_driver_looks_is_taken_at_any_clock(
    asker_is_ahead_ms: int,
) -> None:
    post = Post()
    now_ms = 10_000_000
    assert post.driver.take(now_ms) == []
    asked = replace(ASKED, expires_ms=now_ms + asker_is_ahead_ms + 60_000)
    post.asker.post(asked)
    assert post.driver.take(now_ms + FRESH_MS) == [asked]


def test_a_leftover_that_expired_while_no_driver_looked_is_refused() -> None:
    post = Post()
    assert post.driver.take(0) == []
    post.asker.post(ASKED)
    assert post.driver.take(FRESH_MS + 1) == []
    answer = post.asker.await_answer("r1")
    assert answer is not None
    assert "expired" in answer.error


def test_requests_that_one_look_left_over_may_be_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver begins to look, and more leftovers lie there than it takes at once."""
    monkeypatch.setattr(savepoint_mailbox, "NEW_MAX", 1)
    post = Post()
    for name in ("r1", "r2"):
        post.asker.post(replace(ASKED, request_id=name))
    assert post.driver.take(5_000) == []
    assert post.driver.take(5_500) == []
    assert post.asker.await_answer("r1") is not None
    assert post.asker.await_answer("r2") is not None


def test_an_expired_request_is_removed_and_answered_with_advice() -> None:
    post = Post()
    post.asker.post(ASKED)
    assert post.driver.take(ASKED.expires_ms) == []
    answer = post.asker.await_answer("r1")
    assert answer is not None
    assert not answer.ok
    assert "clocks" in answer.error
    assert post.files == ["r1.answer.json"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        json.dumps({"request_id": "r2", "kind": "savepoint", "target": "x", "expires_ms": 9}),
        json.dumps({"request_id": "r1", "kind": "checkpoint", "target": "x", "expires_ms": 9}),
        json.dumps({"request_id": "r1", "kind": "later", "target": "x", "expires_ms": 9}),
        json.dumps(
            {"request_id": "r1", "kind": "savepoint", "target": "x", "expires_ms": 9, "new": 1}
        ),
    ],
)
def test_what_is_no_request_is_removed_and_answered(data: bytes | str) -> None:
    post = Post()
    path = JobLayout(JOB).request("r1")
    post.store.put(path, data.encode() if isinstance(data, str) else data)
    assert post.driver.take(0) == []
    answer = post.asker.await_answer("r1")
    assert answer is not None
    assert not answer.ok
    assert not post.store.exists(path)


def test_foreign_files_in_the_mailbox_are_left_alone() -> None:
    post = Post()
    post.store.put(f"{JobLayout(JOB).requests}/notes.txt", b"mine")
    post.store.put(f"{JobLayout(JOB).requests}/a.b.json", b"mine")
    assert post.driver.take(0) == []
    assert post.files == ["a.b.json", "notes.txt"]


def test_a_request_id_with_dots_and_slashes_stays_in_the_mailbox() -> None:
    post = Post()
    asked = replace(ASKED, request_id="../a.answer")
    post.asker.post(asked)
    assert post.driver.take(0) == [asked]
    assert JobLayout(JOB).requests in post.store.list()[0]
    post.driver.answer(asked.request_id, Answer(asked.request_id, ok=False, error="no"))
    assert post.asker.await_answer(asked.request_id) is not None


def test_a_mark_without_its_request_is_cleaned_up() -> None:
    post = Post()
    post.store.put(JobLayout(JOB).request_taken("r1"), b"")
    post.driver.take(0)
    assert post.files == []


def test_answers_that_are_not_fetched_are_removed_after_a_while() -> None:
    post = Post()
    post.asker.post(ASKED)
    post.driver.take(0)
    post.driver.answer("r1", DONE)
    later = post.new_driver()
    later.take(5_000)
    later.take(5_000 + ANSWER_KEPT_MS - 1)
    assert post.asker.await_answer("r1") == DONE
    later.take(5_000 + ANSWER_KEPT_MS)
    assert post.files == []


def test_many_requests_are_taken_over_several_looks() -> None:
    post = Post()
    for number in range(NEW_MAX + 1):
        post.asker.post(replace(ASKED, request_id=f"r{number}"))
    first, second = post.driver.take(0), post.driver.take(1)
    assert (len(first), len(second)) == (NEW_MAX, 1)
    assert not set(first) & set(second)


def test_a_storage_that_fails_half_way_loses_no_request() -> None:
    class Failing(MemoryStore):
        is_down = True

        def put(self, path: str, data: bytes) -> None:
            if self.is_down and path.endswith("r2.taken"):
                raise StorageError("down")
            super().put(path, data)

    post = Post()
    post.store = Failing()
    asker, driver = Mailbox(post.store, JOB), Mailbox(post.store, JOB)
    for request_id in ("r1", "r2"):
        asker.post(replace(ASKED, request_id=request_id))
    with pytest.raises(StorageError):
        driver.take(0)
    post.store.is_down = False
    assert [request.request_id for request in driver.take(1)] == ["r1", "r2"]


def test_jobs_have_mailboxes_of_their_own() -> None:
    post = Post()
    post.asker.post(ASKED)
    assert Mailbox(post.store, JobId("sums-1a2b-2")).take(0) == []


def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    post = Post()
    post.store.put(JobLayout(JOB).answer("r1"), b"?")
    with pytest.raises(ProtocolError, match="is no answer"):
        post.asker.await_answer("r1")
