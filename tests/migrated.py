"""A migrated database and static files that are made once in a run of the suite, to begin with.

Each takes 3.5 s of a processor, and a dozen tests want their own. A run of a few tests makes
neither: each home is prepared anew there, as some are in every run.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # The runner imports this module, and Django's settings are not its own.
    from controlplane.embedded.postgres import Postgres

DIRECTORY = "WEIR_TESTS_MIGRATED"  # Set by ``python -m tests``, for all lanes and workers.


def is_made() -> bool:
    """Whether this run makes a migrated database."""
    return DIRECTORY in os.environ


def begin_migrated(server: "Postgres") -> None:
    """Give a server that never ran the migrated data of this run, if it makes some."""
    if not is_made():
        return
    source = _migrated(Path(os.environ[DIRECTORY]))
    assert not server.data.exists(), "the server has data already"
    # With owners and modes: as root, another user runs the server.
    subprocess.run(["cp", "-a", source.data, server.data], check=True)
    shutil.copy(source.directory / "password", server.directory / "password")


def begin_prepared(home: Path) -> None:
    """Give the home of a stack that never ran the migrated data and the static files."""
    from controlplane.embedded.postgres import Postgres

    begin_migrated(Postgres(home / "postgres"))
    begin_with_static_files(home)


def begin_with_static_files(home: Path) -> None:
    """Copy this run's static files into a home, if it makes some; with their times."""
    if is_made():
        source = _migrated(Path(os.environ[DIRECTORY])).directory.parent / "static"
        shutil.copytree(source, home / "static", copy_function=shutil.copy2)


def _migrated(directory: Path) -> "Postgres":
    """The server with the migrated data, stopped; the first to ask makes it, the others wait."""
    from controlplane.embedded.postgres import Postgres

    directory.mkdir(mode=0o711, exist_ok=True)
    server = Postgres(directory / "postgres", fast=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            server.remove()  # Of one who was killed while making it.
            with server:
                migrate(server.url)
            _django("collectstatic", "--no-input", WEIR_HOME=str(directory))
            (directory / "complete").touch()
    return server


def migrate(url: str) -> None:
    """Migrate a database, in a process of its own."""
    _django("migrate", DATABASE_URL=url)


def _django(*command: str, **environment: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "django", *command, "--verbosity=0", "--skip-checks"],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings.test"} | environment,
        check=True,
    )
