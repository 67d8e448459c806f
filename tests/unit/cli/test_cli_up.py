"""``weir up`` and ``weir manage`` become a command of the control plane."""

from argparse import ArgumentParser

import pytest
from django.core.management.base import BaseCommand

from controlplane.management.commands.weir_up import Command
from weir.cli import up
from weir.cli.arguments import parser
from weir.tools import control_plane


def options(of: ArgumentParser) -> set[str]:
    return {word for action in of._actions for word in action.option_strings}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that a process became."""
    lines: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, words: lines.append(words[4:]))
    return lines


def test_up_has_the_options_of_the_control_planes_command() -> None:
    ours = ArgumentParser()
    up.add_up(ours)
    whole = Command().create_parser("manage.py", "weir_up")
    djangos = BaseCommand().create_parser("manage.py", "weir_up")
    assert options(ours) - {"-h", "--help"} == options(whole) - options(djangos) != set()


def test_up_passes_on_what_was_given(started: list[list[str]]) -> None:
    words = ["--demo", "--keep-jobs", "--port", "0", "--home", "-x", "--access", "a b"]
    words[words.index("--home") : words.index("--access")] = ["--home=-x"]
    up.run_up(parser().parse_args(["up", *words]))
    up.run_up(parser().parse_args(["up"]))
    assert [line[3:] for line in started] == [
        ["--demo", "--keep-jobs", "--port=0", "--home=-x", "--access=a b"],
        [],
    ]
    for line in started:
        assert Command().create_parser("", "weir_up").parse_args(line[1:])


def test_up_takes_no_settings_of_another_project(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
    up.run_up(parser().parse_args(["up"]))
    assert started[0][:2] == ["weir_up", f"--settings={control_plane.SETTINGS}"]


def test_manage_runs_a_command_with_the_settings_of_the_environment(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "controlplane.settings.production")
    up.run_manage(parser().parse_args(["manage", "weir_user", "mara", "--role", "admin"]))
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    up.run_manage(parser().parse_args(["manage", "help"]))
    settings = [line[1] for line in started]
    assert settings == [
        "--settings=controlplane.settings.production",
        "--settings=controlplane.settings.dev",
    ]
    assert [(line[0], line[3:]) for line in started] == [
        ("weir_user", ["mara", "--role", "admin"]),
        ("help", []),
    ]
