import sys

import pytest

from weir.datastream.checks import uncaught
from weir.datastream.checks.uncaught import fold_tracebacks
from weir.errors import GraphError


def test_an_error_of_weirs_is_shown_with_the_users_frames_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    fold_tracebacks()
    error = GraphError("map got None")
    sys.excepthook(GraphError, error, None)
    assert capsys.readouterr().err == "weir: map got None\n"


def test_another_error_is_shown_as_python_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    fold_tracebacks()
    sys.excepthook(KeyError, KeyError("m"), None)
    assert capsys.readouterr().err == "KeyError: 'm'\n"


def test_a_hook_of_the_programs_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(sys, "excepthook", own)
    fold_tracebacks()
    assert sys.excepthook is own


def test_a_notebook_shows_them_so_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell()
    monkeypatch.setattr(uncaught, "notebook_shell", lambda: shell)
    fold_tracebacks()
    fold_tracebacks()
    ((kinds, show),) = shell.handlers
    assert issubclass(GraphError, kinds)
    show(shell, GraphError, GraphError("map got None"), None)
    assert capsys.readouterr().err == "weir: map got None\n"


class Shell:
    """IPython's shell, as far as it takes handlers for exceptions."""

    def __init__(self) -> None:
        self.custom_exceptions: tuple[type, ...] = ()
        self.handlers: list[tuple[tuple[type, ...], object]] = []

    def set_custom_exc(self, kinds: tuple[type, ...], handler: object) -> None:
        self.custom_exceptions = kinds
        self.handlers.append((kinds, handler))
