"""Arguments of pipelines: on the command line, or in a file that others cannot read."""

from pathlib import Path

import pytest

from weir.cli.arguments import parser, pipeline_parameters
from weir.errors import ConfigError


def parameters(*words: str, command: str = "run") -> dict[str, str]:
    more = ["--restore", "/c/chk-1"] if command == "preview" else []
    return pipeline_parameters(parser().parse_args([command, "pipeline.py", *more, *words]))


@pytest.mark.parametrize("command", ["run", "preview"])
def test_arguments_come_from_both_and_the_command_line_wins(tmp_path: Path, command: str) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"password": "hunter2", "output": "/a", "empty": ""}')
    given = parameters("--args-file", str(file), "--arg", "output=/b=c", command=command)
    assert given == {"password": "hunter2", "output": "/b=c", "empty": ""}
    assert parameters(command=command) == {}


@pytest.mark.parametrize("content", ["", "[1]", '"text"', '{"a": 1}', "\xff"])
def test_file_that_is_no_object_of_texts_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "arguments.json"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"--args-file .*arguments\.json"):
        parameters("--args-file", str(file))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parameters("--args-file", str(tmp_path / "none"))
