#!/usr/bin/env python3
"""The unit tests on several versions of Python; prints which ran, and which are not installed.

Each version has an environment of its own, ``.venv-<version>``, with the packages of the lock file:
some minutes and 1.5 GB once, and nothing while the lock file stays as it is.

Usage: ``unit_tests.py VERSION … [-- pytest options]``
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
CAN_MAKE_ENVIRONMENTS = "import ensurepip, sys, venv; print(*sys.version_info[:3], sep='.')"


def interpreter(version: str) -> tuple[Path, str] | None:
    """A Python of this version that works, and its whole version; None where there is none."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    for program in [*([Path(on_path)] if on_path else []), *sorted(of_pyenv)]:
        # A shim of pyenv is on the path for versions that it does not start.
        answer = subprocess.run(
            [program, "-c", CAN_MAKE_ENVIRONMENTS], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            return program, answer.stdout.strip()
    return None


def environment(version: str, program: Path) -> Path:
    """The Python of the version's environment, which has what the lock file says."""
    directory = ROOT / f".venv-{version}"
    python, stamp = directory / "bin" / "python", directory / ".installed"
    if stamp.exists() and stamp.read_bytes() == LOCK.read_bytes():
        return python
    print(f"Installing the locked packages in {directory.name}: some minutes.", flush=True)
    subprocess.run([program, "-m", "venv", directory], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--use-pep517", "--require-hashes", "-r", LOCK], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
    shutil.copyfile(LOCK, stamp)
    return python


def main() -> int:
    """Run them all; 1 where a test fails, or no version is installed."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    outcomes: dict[str, str] = {}
    for version in words[:end]:
        if (installed := interpreter(version)) is None:
            outcomes[version] = "not installed"
            continue
        program, whole_version = installed
        python = environment(version, program)
        print(f"Python {whole_version}", flush=True)
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/unit", "-n", "2"]
        done = subprocess.run([*pytest, *words[end + 1 :]], cwd=ROOT, check=False)
        outcomes[whole_version] = "failed" if done.returncode else "passed"
    for version, outcome in outcomes.items():
        print(f"unit tests on Python {version}: {outcome}")
    ran = [outcome for outcome in outcomes.values() if outcome != "not installed"]
    return 0 if ran and "failed" not in ran else 1


if __name__ == "__main__":
    sys.exit(main())
