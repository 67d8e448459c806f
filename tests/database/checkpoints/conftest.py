"""Checkpoints on a real database, with a storage directory of the test's own."""

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role, User
from tests import factories
from tests.database.checkpoints.line import Line


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, settings: Settings) -> Path:
    """The root of the checkpoint storage; scripts and driver files lie beside it."""
    settings.WEIR_UPLOADS = tmp_path / "uploads"
    settings.WEIR_DRIVERS = tmp_path / "drivers"
    settings.WEIR_CHECKPOINT_ROOT = str(tmp_path / "checkpoints")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "pipeline.py").write_text("print('a pipeline')\n")
    settings.WEIR_SCRIPT_ROOTS = [scripts]
    return tmp_path / "checkpoints"


@pytest.fixture(autouse=True)
def wakeups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics that would be published; nothing in these tests waits for one."""
    published: list[str] = []
    monkeypatch.setattr("controlplane.base.wakeups.publish", published.append)
    return published


@pytest.fixture(autouse=True)
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Jobs and seconds that would be counted down; the tests tick by themselves."""
    sent: list[tuple[str, float]] = []
    monkeypatch.setattr(
        "checkpoints.coordinator.countdowns.send",
        lambda *what, is_repeated=False: sent.append(what),
    )
    return sent


@pytest.fixture
def operator(db: None) -> User:
    """A user who may request checkpoints."""
    return factories.user(Role.OPERATOR, "olga")


@pytest.fixture
def line(db: None) -> Line:
    """The line of a job's driver, which has brought the job up."""
    return Line.running()
