#!/usr/bin/env python3
"""The locked packages against the published advisories: Python's by pip-audit, npm's by npm.

Usage: ``audit.py PIP_AUDIT NPM``, the two programs. Exit code 0: no advisory concerns a locked
package; 1: some do, each on a line of its own; 2: an advisory database did not answer, so that the
result says nothing about those packages.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = "requirements.lock"
TIMEOUT_S = 600.0
CLEAN, CONCERNED, UNKNOWN = 0, 1, 2


class NoAnswerError(Exception):
    """No result came: usually the advisory database cannot be reached from here."""


def answer(command: list[str]) -> Any:
    """The JSON document that a program prints; it may end with a code of its own.

    Raises:
        NoAnswerError: It printed none; the message has the end of what it said instead.
    """
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(str(error)) from error
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoAnswerError(said[-1] if said else f"exit code {done.returncode}") from error


def python_advisories(pip_audit: str) -> tuple[int, list[str]]:
    """The number of locked Python packages, and a line for each advisory on one."""
    command = [pip_audit, "--requirement", LOCK, "--require-hashes", "--disable-pip"]
    packages = answer([*command, "--format", "json", "--progress-spinner", "off"])["dependencies"]
    if skipped := [package["skip_reason"] for package in packages if "skip_reason" in package]:
        raise NoAnswerError(f"{len(skipped)} of {len(packages)} packages: {skipped[0]}")
    lines = []
    for package in packages:
        for advisory in package["vulns"]:
            fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
            lines.append(
                f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}"
            )
    return len(packages), lines


def npm_advisories(npm: str) -> tuple[int, list[str]]:
    """The number of locked npm packages, and a line for each with an advisory."""
    told = answer([npm, "audit", "--package-lock-only", "--json"])
    if "vulnerabilities" not in told:
        error = told.get("error") or {}
        reason = error.get("summary") or error.get("code") or told.get("message")
        raise NoAnswerError(str(reason or "npm gave no reason")[:500])
    lines = [
        f"{name} {package['range']}: {package['severity']}; {', '.join(_titles(package['via']))}"
        for name, package in sorted(told["vulnerabilities"].items())
    ]
    return told["metadata"]["dependencies"]["total"], lines


def _titles(causes: list[Any]) -> Iterator[str]:
    for cause in causes:
        yield cause["title"] if isinstance(cause, dict) else f"by {cause}"


def main(pip_audit: str, npm: str) -> int:
    """Print the results of both."""
    worst = CLEAN
    for name, look, program in (
        ("python", python_advisories, pip_audit),
        ("npm", npm_advisories, npm),
    ):
        try:
            count, lines = look(program)
        except NoAnswerError as error:
            print(
                f"{name}: not audited. The advisory database did not answer ({error}). This says "
                "nothing about the packages: run make audit where the internet can be reached.",
                file=sys.stderr,
            )
            worst = max(worst, UNKNOWN)
            continue
        for line in lines:
            print(f"{name}: {line}")
        print(f"{name}: {count} packages, {len(lines) or 'no'} known advisories")
        worst = max(worst, CONCERNED if lines else CLEAN)
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
