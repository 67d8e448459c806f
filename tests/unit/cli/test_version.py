"""The version of the package, which is read when it is asked for."""

from importlib.metadata import version

import pytest

import weir
from weir.cli.arguments import parser


def test_the_version_is_that_of_the_installed_package() -> None:
    assert weir.__version__ == version("weir-streaming")


def test_the_package_has_no_other_attribute_of_its_own() -> None:
    with pytest.raises(AttributeError, match="no attribute 'version'"):
        weir.version  # noqa: B018 - that it raises is the test


def test_the_command_line_says_it_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("importlib.metadata.version")
    parser().parse_args(["checkpoints", "/data"])  # A look-up would take 27 ms of each start.
    monkeypatch.undo()
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"weir {weir.__version__}\n"
