"""The division of a command line between Weir and the script."""

import pytest

from weir.cli.arguments import parser

PREFIX = {"run": [], "preview": ["--restore", "/c/chk-1"], "compare-modes": []}


@pytest.mark.parametrize("command", PREFIX)
@pytest.mark.parametrize(
    ("words", "parallelism", "scripts"),
    [
        (["s.py"], None, []),
        (["s.py", "--input", "x"], None, ["--input", "x"]),
        (["s.py", "--input=x", "-v", "a", "b"], None, ["--input=x", "-v", "a", "b"]),
        (["s.py", "--", "--input", "x"], None, ["--input", "x"]),
        (["s.py", "--parallelism", "2", "--input", "x"], 2, ["--input", "x"]),
        (["s.py", "--input", "x", "--parallelism=2", "y"], 2, ["--input", "x", "y"]),
        (["--parallelism", "2", "s.py", "in.txt"], 2, ["in.txt"]),
        (["s.py", "--", "--parallelism", "7"], None, ["--parallelism", "7"]),
        (
            ["--parallelism", "2", "s.py", "a", "--", "--parallelism", "7"],
            2,
            ["a", "--parallelism", "7"],
        ),
        (["s.py", "--", "a", "--", "b"], None, ["a", "--", "b"]),
        (["s.py", "--offset", "-5", "-"], None, ["--offset", "-5", "-"]),
        (["--", "-s.py", "--input", "x"], None, ["--input", "x"]),
    ],
)
def test_what_weir_does_not_know_behind_the_script_is_the_scripts(
    command: str, words: list[str], parallelism: int | None, scripts: list[str]
) -> None:
    given = parser().parse_args([command, *PREFIX[command], *words])
    assert given.script_arguments == scripts
    assert given.parallelism == parallelism
    assert given.pipeline.endswith("s.py")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["s.py", "--paralelism", "2"], "is it --parallelism? An option of the script goes behind"),
        (["s.py", "--parallel=2"], "--parallel is no option of Weir's: is it --parallelism?"),
        (["s.py", "--masterr", "x"], "--masterr is no option of Weir's: is it --master?"),
        (["s.py", "--storages", "x"], "is it --storage?"),
        (["--input", "x", "s.py"], "unrecognized arguments: --input"),
        (["--parallelism", "2"], "the following arguments are required: pipeline"),
        ([], "the following arguments are required: pipeline"),
    ],
)
def test_what_may_be_a_slip_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parser().parse_args(["run", *words])
    assert raised.value.code == 2
    assert told in capsys.readouterr().err


def test_an_option_that_only_begins_like_one_of_weirs_is_the_scripts() -> None:
    words = ["s.py", "--model", "m", "--modest"]
    assert parser().parse_args(["run", *words]).script_arguments == words[1:]


def test_other_commands_take_no_arguments_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["checkpoints", "/c", "--input", "x"])
    assert "unrecognized arguments: --input x" in capsys.readouterr().err


@pytest.mark.parametrize("command", PREFIX)
def test_help_states_the_rule(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    told = capsys.readouterr().out
    assert "weir run script.py -- --input in.txt --parallelism 7" in told
    assert "in-process" in told or command == "preview"
