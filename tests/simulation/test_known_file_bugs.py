"""Plausible bugs in the sweep of files, each of which the simulation must find."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulation.catching import Show, caught_at
from weir.ids import AttemptNumber, KeyGroupRange, StateHandle
from weir.jobmaster.checkpoint_files import CheckpointFiles
from weir.local.cluster import InProcessSlot
from weir.output import needs
from weir.output.needs import Known, Need
from weir.protocol.deployment import RestoredHandle
from weir.protocol.restore import CHANGES
from weir.state import chains, store
from weir.state.columns.changed_rows import ChangedRows
from weir.storage.local_copies import LocalCopies

pytestmark = pytest.mark.whole


def test_a_sweep_that_does_not_come_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    monkeypatch.setattr(CheckpointFiles, "sweep", lambda files, *, may_run: None)
    failure = caught_at("nothing is swept", show, first=4)
    assert "the job finished, and" in str(failure)


def test_a_sweep_of_state_that_a_manifest_names_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    def attempt_alone(known: Known, number: int, inside: str, path: str) -> Need | None:
        attempt = inside.partition("/")[0]
        if not attempt.isdecimal():
            return Need(needs.Reason.DOUBT)
        return needs._of_attempt(known, AttemptNumber(int(attempt)))

    monkeypatch.setattr(needs, "_need_in_checkpoint", attempt_alone)
    failure = caught_at("all state of older attempts is swept", show, first=4)
    assert "needs it" in str(failure)


def test_a_local_copy_that_is_taken_unchecked_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    def unchecked(copies: LocalCopies, name: str, handle: StateHandle) -> tuple[bytes, str]:
        with open(os.open(name, os.O_RDONLY, dir_fd=copies.directory), "rb") as file:
            return file.read(), ""

    monkeypatch.setattr(LocalCopies, "_checked", unchecked)
    caught_at("a local copy is taken unchecked", show, first=66)


def test_copies_that_are_never_deleted_are_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(InProcessSlot, "leave_copies", lambda slot: None)
    failure = caught_at("the copies of a slot outlive it", show, first=4)
    assert "local copies are left" in str(failure)


def test_a_table_that_is_restored_without_its_changes_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    def without_changes(pieces: Sequence[RestoredHandle], groups: KeyGroupRange) -> Any:
        whole = [p for p in pieces if p.handle.mode != CHANGES or "table." not in p.handle.name]
        return chains.parts_to_read(whole, groups)

    monkeypatch.setattr(store, "parts_to_read", without_changes)
    failure = caught_at("a table is restored without its changes", show, first=169)
    assert "in a table" in str(failure)


def test_changes_of_a_table_that_are_not_noted_are_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(ChangedRows, "mark", lambda rows, slots: None)
    failure = caught_at("changed rows are not noted", show, first=169)
    assert "in a table" in str(failure)
