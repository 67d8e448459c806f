"""PyFlink scripts run on Weir: the root of their imports is all that changes."""

import re
from pathlib import Path

import pytest

from weir.datastream.execution import ExecutionOptions, overriding
from weir.tools.pipeline_scripts import run_pipeline

SCRIPTS = Path(__file__).with_name("pyflink_scripts")
_ROOT = re.compile(r"^(from|import) pyflink\b", re.MULTILINE)

PRINTED = {
    "word_count": [
        "('to', 1)", "('be', 1)", "('or', 1)", "('not', 1)", "('to', 2)", "('be', 2)",
        "('that', 1)", "('is', 1)", "('the', 1)", "('question', 1)",
    ],
    "keyed_timers": ["('a', 2, 15000)", "('b', 2, 19000)"],
    "process_windows": [
        "('hello', 0, 5, 1)", "('hi', 0, 5, 4)", "('hi', 5, 10, 1)",
    ],
    "window_aggregates": ["('a', 999, 2.0)", "('b', 999, 10.0)", "('a', 1999, 5.0)"],
    "side_outputs": ["odd 1", "even 2", "word> three", "even 4", "odd 5"],
    "unions": ["small 1", "small 2", "small 2", "small 4", "big 6", "big 10", "big 20"],
    "keyed_state": ["a: [1, 5, 1] 5 7", "b: [7, 7] 7 14"],
    "configured": ["hello ada", "hello bob"],
    "processing_time": ["hello ada", "hello bob"],
}  # fmt: skip


def run(name: str, directory: Path, *arguments: str) -> str:
    """Run a script in this process, with ``pyflink`` replaced by ``weir`` in its imports."""
    text, count = _ROOT.subn(r"\1 weir", (SCRIPTS / f"{name}.py").read_text())
    assert count
    script = directory / f"{name}.py"
    script.write_text(text)
    with overriding(ExecutionOptions(master="in-process")):
        run_pipeline(script.name, script, arguments)
    return text


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return sorted(re.sub(r"^(\w+:)?\d+> |^(\w+):\d+(?=> )", r"\2", line) for line in lines)


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_prints_the_same(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, tmp_path)
    assert printed(capsys) == sorted(PRINTED[name])


def test_words_go_from_a_file_into_files(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a b\nb\n")
    output = tmp_path / "out"
    run("word_count", tmp_path, "--input", str(tmp_path / "in.txt"), "--output", str(output))
    (file,) = output.iterdir()
    assert file.suffix == ".ext"
    assert file.read_text() == "('a', 1)\n('b', 1)\n('b', 2)\n"


def test_numbers_go_into_files_once(tmp_path: Path) -> None:
    output = tmp_path / "out"
    run("file_sink", tmp_path, str(output))
    files = [path for path in output.iterdir() if path.is_file()]
    assert all(path.name.startswith("part-") and path.suffix == ".txt" for path in files)
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(f"number {n}" for n in range(1, 501))


def test_every_script_is_run() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*PRINTED, "file_sink"}
