"""``make audit``: what it says of advisories, and that it never calls silence a good result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHON = {
    "dependencies": [
        {"name": "celery", "version": "5.5.0", "vulns": []},
        {
            "name": "starlette",
            "version": "1.0.0",
            "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["1.0.1"], "aliases": []}],
        },
        {
            "name": "urllib3",
            "version": "2.4.0",
            "vulns": [{"id": "GHSA-xxxx", "fix_versions": [], "aliases": []}],
        },
    ],
    "fixes": [],
}
NPM: dict[str, Any] = {
    "vulnerabilities": {
        "plotly.js": {
            "range": "<2.25.2",
            "severity": "high",
            "via": [{"title": "Prototype pollution"}, "minimist"],
        }
    },
    "metadata": {"dependencies": {"total": 1}},
}
CLEAN_PYTHON = {"dependencies": PYTHON["dependencies"][:1], "fixes": []}
CLEAN_NPM = {"vulnerabilities": {}, "metadata": {"dependencies": {"total": 1}}}
NO_REASON = {"error": {"summary": "", "detail": ""}}
NO_NETWORK = {"error": {"code": "ENOTFOUND", "summary": "request to https://registry failed"}}


def program(path: Path, stdout: Any, *, stderr: str = "", code: int = 0) -> Path:
    """A program that answers so, and notes how it was called."""
    text = stdout if isinstance(stdout, str) else json.dumps(stdout)
    path.with_suffix(".out").write_text(text)
    path.write_text(
        f'#!/bin/sh\necho "$@" > {path}.called\ncat {path.with_suffix(".out")}\n'
        f"echo '{stderr}' >&2\nexit {code}\n"
    )
    path.chmod(0o755)
    return path


def audit(pip_audit: Path, npm: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / ".ci" / "audit.py", pip_audit, npm],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={"PATH": os.environ["PATH"]},
    )


def test_packages_without_advisories_pass(tmp_path: Path) -> None:
    done = audit(
        program(tmp_path / "pip-audit", CLEAN_PYTHON), program(tmp_path / "npm", CLEAN_NPM)
    )
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["python: 1 packages, no known advisories", "npm: 1 packages, no known advisories"],
    )
    called = (tmp_path / "pip-audit.called").read_text()
    assert called.startswith("--requirement requirements.lock --require-hashes --disable-pip")
    assert (tmp_path / "npm.called").read_text() == "audit --package-lock-only --json\n"


def test_each_advisory_is_a_line_and_the_result_is_one(tmp_path: Path) -> None:
    # Both programs end with 1 where they have something to say.
    done = audit(
        program(tmp_path / "pip-audit", PYTHON, stderr="Found 2 known vulnerabilities", code=1),
        program(tmp_path / "npm", NPM, code=1),
    )
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            "python: starlette 1.0.0: PYSEC-2026-1, fixed in 1.0.1",
            "python: urllib3 2.4.0: GHSA-xxxx, fixed in no version yet",
            "python: 3 packages, 2 known advisories",
            "npm: plotly.js <2.25.2: high; Prototype pollution, by minimist",
            "npm: 1 packages, 1 known advisories",
        ],
    )


SKIPPED = {"dependencies": [{"name": "private", "skip_reason": "not on PyPI"}], "fixes": []}


@pytest.mark.parametrize(
    ("python", "npm", "names"),
    [
        ("", CLEAN_NPM, ["python"]),
        ("Traceback", CLEAN_NPM, ["python"]),
        (SKIPPED, CLEAN_NPM, ["python"]),
        (CLEAN_PYTHON, NO_NETWORK, ["npm"]),
        (CLEAN_PYTHON, NO_REASON, ["npm"]),
        ("", NO_NETWORK, ["python", "npm"]),
    ],
)
def test_a_database_that_does_not_answer_is_said_and_is_no_success(
    tmp_path: Path, python: Any, npm: Any, names: list[str]
) -> None:
    stderr = "ConnectionError: pypi.org cannot be reached"
    done = audit(
        program(tmp_path / "pip-audit", python, stderr=stderr, code=1),
        program(tmp_path / "npm", npm, code=1),
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == names
    assert all("not audited. The advisory database did not answer (" in line for line in lines)


def test_a_program_that_is_missing_is_no_success_either(tmp_path: Path) -> None:
    done = audit(tmp_path / "none", program(tmp_path / "npm", CLEAN_NPM))
    assert done.returncode == 2
    assert "python: not audited" in done.stderr
    assert "npm: 1 packages, no known advisories" in done.stdout
