"""Commands of ``manage.py`` without the database that they need say what to do."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg2
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
LATIN = "ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"


def refused(database: str, home: Path, command: str, **more: str) -> str:
    """The words of a command that fails."""
    run = subprocess.run(
        [sys.executable, ROOT / "manage.py", command, *COMMANDS.get(command, ())],
        env={**os.environ, **more, "DATABASE_URL": database, "WEIR_HOME": str(home)}
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


@pytest.fixture
def server(postgres: Postgres) -> Iterator[str]:
    """The address of a server with databases that Weir cannot use as they are."""
    base = postgres.url.rpartition("/")[0]
    connection = psycopg2.connect(f"{base}/postgres")
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
        cursor.execute("CREATE DATABASE strange")
        cursor.execute(f"CREATE DATABASE latin {LATIN}")
        try:
            yield base
        finally:
            for what in ("DATABASE strange", "DATABASE latin", "ROLE plain"):
                cursor.execute(f"DROP {what}")
            connection.close()


def test_what_hinders_the_preparation_of_a_database_is_told_in_a_line(
    server: str, tmp_path: Path
) -> None:
    line = refused(f"{server}/none", tmp_path, "weir_prepare")
    assert 'database "none" does not exist. Start PostgreSQL, create the database, or' in line
    line = refused(f"{server}/latin", tmp_path, "weir_prepare")
    assert "The database latin has the encoding LATIN1" in line
    assert line.endswith("CREATE DATABASE latin ENCODING 'UTF8' TEMPLATE template0")
    plain = f"postgres://plain:plain@{server.rpartition('@')[2]}/strange"
    line = refused(plain, tmp_path, "weir_prepare")
    assert line == (
        "CommandError: The role plain may not prepare the database strange: permission denied for "
        "schema public. As a superuser: ALTER DATABASE strange OWNER TO plain"
    )


def test_a_database_is_refused_that_is_not_encrypted_as_its_url_demands(
    postgres: Postgres, tmp_path: Path
) -> None:
    line = refused(f"{postgres.url}?sslmode=require", tmp_path, "weir_user")
    assert "server does not support SSL, but SSL was required" in line


@pytest.mark.parametrize(
    "program",
    [
        [str(ROOT / "manage.py"), "check"],
        ["-m", "controlplane.serve"],
        ["-m", "celery", "-A", "controlplane", "worker"],
        ["-m", "celery", "-A", "controlplane", "beat"],
    ],
    ids=lambda program: program[-1],
)
def test_a_setting_that_is_missing_is_told_in_a_line(program: list[str]) -> None:
    without = ("SECRET_KEY", "SECRET_KEY_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    run = subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        env=environment | {"DJANGO_SETTINGS_MODULE": "controlplane.settings.production"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = "set SECRET_KEY, or SECRET_KEY_FILE to a file that holds it.\n"
    assert (run.returncode, run.stdout, run.stderr) == (1, "", said)


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
