"""Commands of ``manage.py`` without the database that they need say what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.embedded.postgres import Postgres

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = {
    "weir_user": ("mara",),
    "weir_token": ("mara", "--name", "x"),
    "weir_audit": ("verify",),
    "weir_reencrypt_secrets": (),
    "weir_suspend": (),
}


def refused(database: str, home: Path, command: str) -> str:
    """The words of a command that fails."""
    run = subprocess.run(
        [sys.executable, ROOT / "manage.py", command, *COMMANDS[command]],
        env={**os.environ, "DATABASE_URL": database, "WEIR_HOME": str(home)}
        | {"DJANGO_SETTINGS_MODULE": "controlplane.settings.dev"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (run.returncode, run.stdout) == (1, "")
    (line,) = run.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_is_away_is_told_in_a_line(command: str, tmp_path: Path) -> None:
    line = refused("postgres://weir:hunter2@127.0.0.1:1/weir", tmp_path, command)
    assert line.startswith(
        "CommandError: The control plane's database is not there: connection to server at "
        '"127.0.0.1", port 1 failed: '
    )
    assert "weir up" in line
    assert "set DATABASE_URL" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("command", ["weir_user", "weir_token"])
def test_a_database_without_tables_is_told_in_a_line(
    command: str, postgres: Postgres, tmp_path: Path
) -> None:
    line = refused(f"{postgres.url.rpartition('/')[0]}/template1", tmp_path, command)
    assert line.startswith("CommandError: The database is not prepared for this version of Weir")
    assert line.endswith("python manage.py weir_prepare --no-static")


def test_a_database_is_refused_that_is_not_encrypted_as_its_url_demands(
    postgres: Postgres, tmp_path: Path
) -> None:
    line = refused(f"{postgres.url}?sslmode=require", tmp_path, "weir_user")
    assert "server does not support SSL, but SSL was required" in line


ENDS = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count()))  # Runs after those that come later.
import django
django.setup()
"""


def test_a_process_ends_without_a_look_at_all_that_it_has_loaded() -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings.test"}
    command = [sys.executable, "-c", ENDS]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(run.stdout) > 50_000
