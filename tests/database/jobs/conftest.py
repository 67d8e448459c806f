"""Jobs on a real database, with directories of the test's own."""

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role, User
from tests import factories


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, settings: Settings) -> Path:
    """Uploads, driver files, checkpoints and scripts lie in the test's directory."""
    settings.WEIR_UPLOADS = tmp_path / "uploads"
    settings.WEIR_DRIVERS = tmp_path / "drivers"
    settings.WEIR_CHECKPOINT_ROOT = str(tmp_path / "checkpoints")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "pipeline.py").write_text("print('a pipeline')\n")
    settings.WEIR_SCRIPT_ROOTS = [scripts]
    return tmp_path


@pytest.fixture(autouse=True)
def no_wakeups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics that would be published; nothing in these tests waits for one."""
    published: list[str] = []
    monkeypatch.setattr("controlplane.base.wakeups.publish", published.append)
    return published


@pytest.fixture
def operator(db: None) -> User:
    """A user who may submit."""
    return factories.user(Role.OPERATOR, "olga")
