"""The checks of a machine: each is one line, which says what to do where something is wrong."""

import pwd
import socket
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from weir.storage.local import LocalStore
from weir.tools.doctor import (
    Finding,
    check_clock,
    check_java,
    check_packages,
    check_ports,
    check_python,
    check_storage,
    check_user,
    skew,
)


def java(directory: Path, says: str) -> dict[str, str]:
    """An environment whose Java is a program that says so."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(directory)}


def test_a_finding_is_one_line_with_what_to_do() -> None:
    assert str(Finding("Java", "17")) == "ok    Java: 17"
    assert str(Finding("Java", "8", "install 17")) == "wrong Java: 8; install 17"


def test_this_machine_runs_weir() -> None:
    findings = [check_python(), check_packages(), check_user(), check_ports(), check_clock()]
    assert [str(finding) for finding in findings if not finding.is_ok] == []


def test_an_old_python_is_wrong() -> None:
    finding = check_python((3, 9, 2), "/usr/bin/python3")
    assert str(finding) == (
        "wrong Python: 3.9.2 (/usr/bin/python3); install Python 3.11 or newer, and Weir into it"
    )


def test_a_user_without_a_name_is_wrong() -> None:
    """As containers have one whose user id is drawn at their start."""
    nameless = next(n for n in range(54_321, 65_000) if n not in {u.pw_uid for u in pwd.getpwall()})
    finding = check_user(nameless)
    assert f"user id {nameless} has no name" in finding.seen
    assert "/etc/passwd" in finding.advice
    assert check_user(0) == Finding("user", "root (user id 0)")


@pytest.mark.parametrize(
    ("version", "wrong"),
    [
        ("3.2", ""),
        ("3.1.0", ""),
        ("3.1", ""),
        ("3.9.9.dev1", ""),
        ("4", "a is 4, and"),
        ("4.0.0", "a is 4.0.0, and"),
        ("3.0.9", "a is 3.0.9, and"),
        (None, "a is missing"),
    ],
)
def test_packages_are_held_against_their_bounds(version: str | None, wrong: str) -> None:
    def version_of(name: str) -> str:
        if name == "weir-streaming":
            return "1.0"
        assert name == "a", "requirements of extras are not asked for"
        if version is None:
            raise PackageNotFoundError(name)
        return version

    finding = check_packages(["a<4,>=3.1", 'b>=1; extra == "demo"'], version_of)
    assert finding.is_ok == (not wrong)
    assert wrong in finding.seen
    assert ("pip install" in finding.advice) == bool(wrong)


@pytest.mark.parametrize(
    ("says", "seen", "is_ok"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15", True),
        ('openjdk version "21" 2023-09-19', "21", True),
        ('java version "1.8.0_392"', "1.8.0_392", False),
        ("The operation couldn't be completed", "says", False),
    ],
)
def test_java_is_asked_for_its_version(tmp_path: Path, says: str, seen: str, is_ok: bool) -> None:
    finding = check_java(java(tmp_path, says.replace("'", "")))
    assert (finding.is_ok, seen in finding.seen) == (is_ok, True)
    assert is_ok or "install Java 17 or newer" in finding.advice


def test_a_java_home_without_java_is_wrong(tmp_path: Path) -> None:
    finding = check_java({"JAVA_HOME": str(tmp_path)})
    assert "which has no bin/java" in finding.seen
    assert "--master in-process needs none" in finding.advice


def test_a_master_that_nothing_answers_at_is_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert check_ports(f"spark://127.0.0.1:{port}").is_ok
        # One of several masters is enough.
        assert check_ports(f"spark://127.0.0.1:1,127.0.0.1:{port}").is_ok
    finding = check_ports(f"spark://127.0.0.1:{port}")
    assert f"127.0.0.1:{port} cannot be reached" in finding.seen
    assert "start the master" in finding.advice


def test_a_storage_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (finding,) = check_storage(str(tmp_path))
    assert finding.is_ok
    assert "created if absent, synced and read" in finding.seen
    assert [path.name for path in tmp_path.iterdir()] == ["job"]
    (finding,) = check_storage(f"file://{tmp_path}/new")
    assert finding.is_ok
    assert not (tmp_path / "new").exists()


def test_a_storage_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for uri in (str(tmp_path / "file"), "s3://bucket/checkpoints"):
        (finding,) = check_storage(uri)
        assert "give a directory that this user may write to" in finding.advice
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_storage_whose_second_writer_wins_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaces(store: LocalStore, path: str, data: bytes) -> bool:
        store.put(path, data)
        return True

    monkeypatch.setattr(LocalStore, "create_if_absent", replaces)
    (finding,) = check_storage(str(tmp_path))
    assert "let a second writer replace a file" in finding.seen
    assert list(tmp_path.iterdir()) == []


def test_clocks() -> None:
    assert check_clock(time.time()).is_ok
    assert "by NTP" in check_clock(0.0).advice
    assert skew("clock of a", 0).is_ok
    assert skew("clock of a", 4_900).seen == "4.9 s behind this one's"
    assert str(skew("clock of a", -7_000)) == (
        "wrong clock of a: 7.0 s ahead of this one's; let NTP set the clocks of all machines"
    )
