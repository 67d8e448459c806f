"""The claim of an attempt tells on the same machine whether its driver lives."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from weir.ids import AttemptNumber, JobId
from weir.storage.attempt_claims import (
    ManagedClaim,
    Standing,
    describe_process,
    load_managed,
    standing,
)
from weir.storage.layout import JobLayout
from weir.storage.memory import MemoryStore

JOB = JobId("job")
LAYOUT = JobLayout(JOB)
FIRST, SECOND = AttemptNumber(1), AttemptNumber(2)


def store_with(*claims: bytes) -> MemoryStore:
    store = MemoryStore()
    for number, claim in enumerate(claims, 1):
        store.put(LAYOUT.attempt(AttemptNumber(number)), claim)
    return store


def test_a_process_that_lives_is_alive() -> None:
    store = store_with(describe_process())
    assert standing(store, JOB) == (Standing.ALIVE, os.getpid())


def test_a_process_that_ended_is_gone() -> None:
    code = "from weir.storage.attempt_claims import describe_process as d; print(d().decode())"
    claim = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert standing(store_with(claim), JOB) == (Standing.GONE, None)


def test_a_pid_that_was_reused_is_gone() -> None:
    described = json.loads(describe_process())
    described["started"] -= 1
    assert standing(store_with(json.dumps(described).encode()), JOB) == (Standing.GONE, None)


@pytest.mark.parametrize("claim", [b"", b"[]", b"?", b'{"pid": "x"}'])
def test_what_cannot_be_told_is_unknown(claim: bytes) -> None:
    assert standing(store_with(claim), JOB) == (Standing.UNKNOWN, None)


def test_another_machine_is_unknown() -> None:
    described = json.loads(describe_process()) | {"machine": "another"}
    assert standing(store_with(json.dumps(described).encode()), JOB) == (Standing.UNKNOWN, None)
    assert standing(MemoryStore(), JOB) == (Standing.UNKNOWN, None)


def test_a_driver_of_a_control_plane_is_left_to_it() -> None:
    store = store_with(ManagedClaim("https://weir.example", "0" * 16).dump())
    assert standing(store, JOB) == (Standing.MANAGED, None)


def test_a_managed_claim_tells_control_plane_and_driver_but_no_token() -> None:
    claim = ManagedClaim.with_token("https://weir.example", "token")
    assert claim.driver == hashlib.sha256(b"token").hexdigest()[:16]
    assert load_managed(claim.dump()) == claim
    assert b"token" not in claim.dump()


def test_an_older_version_named_no_control_plane() -> None:
    assert load_managed(b'{"managed": true}') == ManagedClaim("", "")
    assert standing(store_with(b'{"managed": true}'), JOB) == (Standing.MANAGED, None)


def test_other_claims_are_no_control_planes() -> None:
    for claim in (b"", b"[]", b"?", describe_process()):
        assert load_managed(claim) is None


def test_an_end_counts_until_a_newer_attempt() -> None:
    own = describe_process()
    store = store_with(own)
    store.put(LAYOUT.over(FIRST), b"")
    assert standing(store, JOB) == (Standing.OVER, None)
    store.put(LAYOUT.attempt(SECOND), own)
    assert standing(store, JOB) == (Standing.ALIVE, os.getpid())


def test_a_finished_job_that_is_being_run_again_is_alive() -> None:
    own = describe_process()
    store = store_with(own)
    store.put(LAYOUT.finished, b"1")
    assert standing(store, JOB) == (Standing.OVER, None)
    store.put(LAYOUT.attempt(SECOND), own)
    assert standing(store, JOB) == (Standing.ALIVE, os.getpid())


def test_an_older_version_named_no_attempt() -> None:
    store = store_with(b"")
    store.put(LAYOUT.finished, b"")
    assert standing(store, JOB) == (Standing.OVER, None)
    store.put(LAYOUT.attempt(SECOND), describe_process())
    assert standing(store, JOB) == (Standing.ALIVE, os.getpid())
