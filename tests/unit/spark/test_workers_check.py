"""The reports of workers, held against this machine; and the report of one, made here."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.spark import worker_probe
from weir.spark.workers_check import PACKAGES, compared


def report(**changes: Any) -> dict[str, Any]:
    own = {
        "host": "a",
        "packages": worker_probe.versions(PACKAGES),
        "driver": "",
        "storage": "",
        "time_ns": 1_500,
    }
    return {**own, **changes}


def told(*reports: dict[str, Any]) -> dict[str, str]:
    return {f.name: str(f) for f in compared(reports, 1_000, 2_000)}


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[:2]


def test_workers_like_this_machine_are_well() -> None:
    lines = told(report(), report(host="b"), report(host="b"))
    assert lines["workers"] == "ok    workers: reports from a (1), b (2)"
    assert [line for line in lines.values() if not line.startswith("ok")] == []


def test_other_packages_are_named_with_their_host() -> None:
    other = {**worker_probe.versions(PACKAGES), "pyarrow": "18.0", "weir-streaming": "missing"}
    line = told(report(), report(host="b", packages=other))["workers' packages"]
    assert line.startswith("wrong workers' packages: b has pyarrow 18.0, this machine ")
    assert "b has weir-streaming missing" in line


def test_ways_storage_and_clocks_are_told_by_host() -> None:
    lines = told(
        report(driver="timed out"),
        report(host="b", storage="Permission denied", time_ns=1_000 - 60 * 10**9),
        report(host="c", time_ns=2_000 + 60 * 10**9),
    )
    assert "wrong workers' way here: a: timed out; open the ports" in lines["workers' way here"]
    assert "wrong workers' storage: b: Permission denied; mount" in lines["workers' storage"]
    assert lines["clock of a"].startswith("ok")
    assert "60.0 s behind" in lines["clock of b"]
    assert "60.0 s ahead of" in lines["clock of c"]


def test_a_worker_reports(tmp_path: Path, address: tuple[str, int]) -> None:
    (tmp_path / "driver").write_text("here")
    (made,) = worker_probe.probe(("pyarrow", "no-such-package"), address, str(tmp_path))(iter(()))
    assert (made["driver"], made["storage"]) == ("", "")
    assert made["packages"]["no-such-package"] == "missing"
    assert [path.name for path in tmp_path.iterdir()] == ["driver"]


def test_a_worker_reports_what_it_cannot_reach(tmp_path: Path, address: tuple[str, int]) -> None:
    (made,) = worker_probe.probe((), ("127.0.0.1", 1), str(tmp_path / "other"))(iter(()))
    assert "refused" in made["driver"]
    assert made["storage"] == "the driver's file is not there: it is another directory"
    (made,) = worker_probe.probe((), address, None)(iter(()))
    assert (made["driver"], made["storage"]) == ("", "")
