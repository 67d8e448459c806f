"""Ctrl-C while a process begins or an example makes its database: all that has begun ends."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded.postgres import Postgres
from controlplane.embedded.process import open_log
from tests.processes import processes_of
from tests.services import reachable_directory
from tests.waiting import TIMEOUT_S, wait_until
from weir.child_process import popen
from weir.examples.demo import let_through

CONTROL_PLANE = """
import sys
from pathlib import Path
from weir.examples.control_plane import LocalControlPlane
with LocalControlPlane(Path(sys.argv[1])):
    print("it is up")
"""
DATABASE = """
import sys
from pathlib import Path
from controlplane.embedded.postgres import Postgres
with Postgres(Path(sys.argv[1], "postgres")):
    print("it is up")
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with reachable_directory() as reachable:
        home = reachable / "home"
        home.mkdir()
        let_through(home)
        yield home


def interrupted(program: str, home: Path) -> None:
    """Run a program until initdb makes the first database, and send it SIGINT."""
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    template = home / "postgres" / "data-making" / "base" / "1"
    wait_until(template.exists, "initdb makes the first database")
    starter.send_signal(signal.SIGINT)
    output, errors = starter.communicate(timeout=TIMEOUT_S)
    assert processes_of(home) == []
    assert (output, starter.returncode) == ("", -signal.SIGINT)
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_control_plane_that_comes_up_ends_with_all_its_processes(home: Path) -> None:
    interrupted(CONTROL_PLANE, home)
    shutil.rmtree(home)  # No process makes files in it meanwhile.


def test_half_a_database_is_not_taken_for_one(home: Path) -> None:
    interrupted(DATABASE, home)
    server = Postgres(home / "postgres", fast=True)
    assert not server.data.exists()
    with server:
        server.connect().close()
    server.remove()


def test_ctrl_c_while_a_child_begins_ends_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def interrupted_popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        child = begin(*arguments, **options)
        begun.append(child)
        os.kill(os.getpid(), signal.SIGINT)  # A handler that runs here would lose the child.
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted_popen)
    handler = signal.getsignal(signal.SIGINT)
    with open_log(tmp_path / "log") as log, pytest.raises(KeyboardInterrupt):
        popen(["sleep", "600"], stdout=log.fileno(), stderr=log.fileno(), cwd="/")
    (child,) = begun
    assert child.poll() == -signal.SIGKILL
    assert signal.getsignal(signal.SIGINT) is handler
