"""The place of the data where no setting names one."""

from pathlib import Path

import pytest

from controlplane.settings.home import default_home


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a user without settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path


def test_checkout_keeps_its_data_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "pyproject.toml").touch()
    assert default_home(tmp_path) == tmp_path / ".weir"


def test_installed_weir_keeps_its_data_in_the_users_directory(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = user / "packages"
    assert default_home(packages) == user / ".local" / "share" / "weir"
    for relative in ("", "data", "./data"):
        monkeypatch.setenv("XDG_DATA_HOME", relative)
        assert default_home(packages) == user / ".local" / "share" / "weir"
    monkeypatch.setenv("XDG_DATA_HOME", str(user / "data"))
    assert default_home(packages) == user / "data" / "weir"
