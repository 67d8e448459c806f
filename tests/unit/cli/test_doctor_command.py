"""``weir doctor``: the exit code, and what it asks for each master."""

import io
from pathlib import Path

import pytest

from weir.cli import doctor
from weir.cli.arguments import parser


def ran(*words: str) -> tuple[int, list[str]]:
    out = io.StringIO()
    code = doctor.run(parser().parse_args(["doctor", *words]), out)
    return code, out.getvalue().splitlines()


def test_all_is_well_here_without_spark(tmp_path: Path) -> None:
    code, lines = ran("--master", "in-process", "--storage", str(tmp_path))
    assert (code, len(lines)) == (0, 5)
    assert all(line.startswith("ok    ") for line in lines)


def test_something_wrong_is_told_and_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, lines = ran("--master", "local[2]")
    assert code == 1
    assert [line[:17] for line in lines if line.startswith("wrong")] == [
        "wrong Java: JAVA_",
        "wrong workers: no",
    ]
    assert ran("--master", "in-process")[0] == 0  # It needs no Java.
