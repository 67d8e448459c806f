"""Commands find the servers of the stack that runs on a home directory, and of no other."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.embedded.running import running_settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory as a stack leaves it behind."""
    for name, port in (("postgres", "5555"), ("redis", "6666")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "password").write_text(f"of-{name}")
        (tmp_path / name / "port").write_text(port)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "url").write_text("http://127.0.0.1:7777")
    (tmp_path / "lock").write_text("1\n")
    return tmp_path


@contextmanager
def running(home: Path) -> Iterator[None]:
    """The lock of a stack that runs."""
    with (home / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_the_servers_of_a_running_stack_are_known(home: Path) -> None:
    with running(home):
        assert running_settings(home) == {
            "DATABASE_URL": "postgres://weir:of-postgres@127.0.0.1:5555/weir",
            "REDIS_URL": "redis://:of-redis@127.0.0.1:6666/0",
            "WEIR_URL": "http://127.0.0.1:7777",
        }


def test_a_stack_that_has_ended_is_not_looked_for(home: Path) -> None:
    with running(home):
        assert running_settings(home)
    assert running_settings(home) == {}


def test_a_home_without_a_stack_has_no_settings(home: Path, tmp_path: Path) -> None:
    assert running_settings(tmp_path / "absent") == {}
    (home / "run" / "url").unlink()
    with running(home):
        assert running_settings(home) == {}  # It is coming up.
