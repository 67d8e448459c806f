"""The command that starts the control plane: from a checkout, and from an installed wheel."""

import sys
from pathlib import Path

import pytest

import weir
from weir.errors import ConfigError
from weir.tools import control_plane

ROOT = Path(__file__).resolve().parents[3]


def test_command_gives_settings_and_path_and_keeps_the_working_directory_off_it() -> None:
    words = control_plane.command("weir_up", "--port=0")
    assert words == [
        *(sys.executable, "-P", "-m", "django", "weir_up"),
        *("--settings=controlplane.settings.dev", f"--pythonpath={ROOT}", "--port=0"),
    ]


def test_installed_control_plane_comes_before_one_beside_weir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weir, "__file__", str(tmp_path / "weir" / "__init__.py"))
    with pytest.raises(ConfigError, match="has no control plane"):
        control_plane.project_directory()
    (tmp_path / "controlplane" / "settings").mkdir(parents=True)
    assert control_plane.project_directory() == tmp_path
    (tmp_path / "weir_control_plane" / "controlplane" / "settings").mkdir(parents=True)
    assert control_plane.project_directory() == tmp_path / "weir_control_plane"


def test_error_names_what_is_missing_and_the_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "NEEDED", ("json", "no_such_package", "nor_this"))
    with pytest.raises(ConfigError) as refused:
        control_plane.command("weir_up")
    assert "needs no_such_package, nor_this, not installed" in str(refused.value)
    assert "pip install 'weir-streaming[control-plane,embedded]'" in str(refused.value)
