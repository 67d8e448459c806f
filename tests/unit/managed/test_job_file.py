"""The job file: what a driver believes, and what it refuses."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from weir.config import CheckpointingMode
from weir.errors import ConfigError
from weir.managed.job_file import PipelineKind, parse_job_file, read_job_file

MINIMAL: dict[str, Any] = {
    "version": 1,
    "gateway": "https://weir.example",
    "job_id": "job",
    "driver": 2,
    "token": "secret-token",
    "pipeline": {"kind": "script", "target": "/pipelines/p.py"},
}


def written(path: Path, told: Any, mode: int = 0o600) -> Path:
    path.write_text(json.dumps(told))
    path.chmod(mode)
    return path


def test_what_is_left_out_is_the_scripts_own(tmp_path: Path) -> None:
    file = read_job_file(written(tmp_path / "job.json", MINIMAL))
    assert (file.job_id, file.driver, file.allow_plain_http) == ("job", 2, False)
    assert file.pipeline.kind is PipelineKind.SCRIPT
    options = file.options.to_execution()
    assert (options.parallelism, options.storage, options.master) == (None, None, None)
    assert "secret-token" not in repr(file)


def test_all_options_reach_the_script(tmp_path: Path) -> None:
    given = {
        "parallelism": 4,
        "interval_ms": 500,
        "mode": "at_least_once",
        "timeout_ms": 60_000,
        "min_pause_ms": 0,
        "retained_max": 5,
        "restart": {"kind": "failure_rate", "failures_max": 3},
        "storage": "/checkpoints",
        "restore": "/checkpoints/job/chk-3",
        "parameters": {"rate": "100"},
        "allow_non_restored_state": True,
        "allow_pickled_state": False,
    }
    told = {**MINIMAL, "options": given, "pipeline": {"kind": "module", "target": "a.b"}}
    file = read_job_file(written(tmp_path / "job.json", told))
    options = file.options.to_execution()
    assert options.mode is CheckpointingMode.AT_LEAST_ONCE
    assert {name: getattr(options, name) for name in given} == given
    assert file.pipeline.kind is PipelineKind.MODULE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "job.json", MINIMAL, mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*must have 0600"):
        read_job_file(path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_job_file(tmp_path / "missing.json")
    os.mkdir(tmp_path / "directory", 0o700)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_job_file(tmp_path / "directory")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "version 2, and this Weir reads 1: install the control plane's version"),
        ({"version": None}, "version None"),
        ({"version": True, "x": 1}, "has no x"),
        ({"colour": "red"}, "JobFile has no colour"),
        ({"token": 7}, r"token: expected str, got int"),
        ({"pipeline": {"kind": "jar", "target": "x"}}, "'jar' is no PipelineKind"),
        ({"pipeline": {"kind": "script"}}, "Pipeline lacks target"),
        ({"options": {"speed": 1}}, "Options has no speed"),
        ({"options": {"restart": {"kind": "often"}}}, "'often' is no RestartStrategyKind"),
        ({"options": {"mode": "maybe"}}, "'maybe' is no CheckpointingMode"),
        ({"options": {"parameters": {"n": 1}}}, "parameter n is 1; parameters are text"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_job_file(json.dumps({**MINIMAL, **change}).encode(), "job.json")


@pytest.mark.parametrize("name", ["gateway", "job_id", "driver", "token", "pipeline"])
def test_what_is_missing_is_named(name: str) -> None:
    told = {key: value for key, value in MINIMAL.items() if key != name}
    with pytest.raises(ConfigError, match=f"lacks {name}"):
        parse_job_file(json.dumps(told).encode(), "job.json")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b'"text"', b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"job\.json"):
        parse_job_file(data, "job.json")
