"""The embedded PostgreSQL: what it keeps, whom it lets in, what it leaves behind."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg2
import pytest

from controlplane.embedded import postgres as module
from controlplane.embedded.postgres import Postgres, can_enter, copied, find_installation
from controlplane.embedded.process import ServiceError, ServiceRunningError
from tests.services import reachable_directory
from weir.examples.demo import let_through


@pytest.fixture
def directory() -> Iterator[Path]:
    with reachable_directory() as reachable:
        yield reachable / "postgres"


@pytest.fixture
def server(directory: Path) -> Iterator[Postgres]:
    with Postgres(directory, fast=True) as started:
        yield started
    started.remove()


def execute(server: Postgres, statement: str) -> None:
    connection = server.connect()
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


def value(server: Postgres, query: str) -> object:
    connection = server.connect()
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
    finally:
        connection.close()
    assert row is not None
    return row[0]


def test_what_was_committed_survives_a_kill(server: Postgres) -> None:
    execute(server, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    address, before = server.url, server.pid
    server.kill()
    assert not psutil.pid_exists(before)
    server.start()
    assert server.url == address
    assert server.pid != before
    assert value(server, "SELECT sum(n) FROM kept") == 500_500


def test_another_start_takes_up_the_data_of_the_last(directory: Path) -> None:
    with Postgres(directory, fast=True) as first:
        execute(first, "CREATE TABLE kept (n int)")
        execute(first, "INSERT INTO kept VALUES (7)")
        address = first.url
    with Postgres(directory, fast=True) as second:
        assert second.url == address  # Password and port included.
        assert value(second, "SELECT n FROM kept") == 7
    second.remove()
    assert not directory.exists()


def test_stopping_leaves_no_process(directory: Path) -> None:
    with Postgres(directory, fast=True) as server:
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        assert len(family) > 1
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert server.leftover_pid() is None
    server.stop()  # Twice is harmless.
    with pytest.raises(ServiceError, match="is not running"):
        _ = server.pid


def test_only_the_password_opens_it(server: Postgres) -> None:
    for password in ("", "wrong"):
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(
                host="127.0.0.1", port=server.port, user="weir", password=password, dbname="weir"
            )
    assert value(server, "SELECT rolpassword FROM pg_authid WHERE rolname = 'weir'").startswith(
        "SCRAM-SHA-256$"
    )


def test_a_lost_password_is_named_and_the_server_ended(directory: Path) -> None:
    with Postgres(directory, fast=True) as server:
        pass
    (directory / "password").write_text("another")
    with pytest.raises(ServiceError, match="refuses the password kept in"):
        server.start()
    assert not server.running
    assert server.leftover_pid() is None


def test_it_listens_on_the_loopback_interface_only(server: Postgres) -> None:
    listening = [
        connection.laddr
        for connection in psutil.Process(server.pid).net_connections(kind="all")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == [("127.0.0.1", server.port)]
    assert value(server, "SHOW unix_socket_directories") == ""


def test_no_other_user_reads_its_files_or_its_command_line(server: Postgres) -> None:
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    for path in server.directory.iterdir():
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert server.password not in " ".join(psutil.Process(server.pid).cmdline())
    assert stat.S_IMODE(server.directory.stat().st_mode) & 0o066 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_root_runs_it_as_an_unprivileged_user(server: Postgres) -> None:
    process = psutil.Process(server.pid)
    assert process.uids().real == process.uids().effective == server.data.stat().st_uid != 0
    assert 0 not in process.gids()


def test_a_second_start_is_refused_and_harms_nothing(server: Postgres) -> None:
    with pytest.raises(ServiceRunningError, match=f"already running on .* process {server.pid}"):
        Postgres(server.directory).start()
    assert value(server, "SELECT 1") == 1


def test_a_server_left_behind_by_a_killed_starter_is_ended(server: Postgres) -> None:
    successor = Postgres(server.directory, fast=True)
    assert successor.leftover_pid() == server.pid
    assert successor.end_leftover()
    assert not server.running
    assert not successor.end_leftover()
    successor.start()
    successor.stop()


def test_a_recycled_process_id_is_not_taken_for_the_server(directory: Path) -> None:
    with Postgres(directory, fast=True) as server:
        pass
    pid_file = server.data / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{server.data}\n")
    assert server.leftover_pid() is None


def test_an_initialisation_that_was_cut_off_is_repeated(directory: Path) -> None:
    cut_off = Postgres(directory, fast=True)
    directory.mkdir()
    directory.chmod(0o711)
    cut_off.data.mkdir()
    (cut_off.data / "PG_VERSION").write_text("18\n")
    with cut_off:
        assert value(cut_off, "SELECT 1") == 1


def test_a_start_that_fails_shows_the_end_of_the_log(directory: Path) -> None:
    with Postgres(directory, fast=True) as server:
        pass
    with (server.data / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(ServiceError, match="no_such_setting"):
        server.start()
    assert not server.running


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to put its data elsewhere")
def test_a_home_that_the_unprivileged_user_cannot_enter_stays_closed(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's home is 0700. The data goes elsewhere, and no user's directory is opened for it."""
    monkeypatch.setattr(module, "ROOTS_DATA", directory)
    home = tmp_path / "closed" / "home"
    home.mkdir(parents=True)
    home.parent.chmod(0o700)
    with Postgres(home / "postgres", fast=True) as server:
        execute(server, "CREATE TABLE kept (n int)")
        assert server.data.is_relative_to(directory)
    with Postgres(home / "postgres", fast=True) as again:
        assert value(again, "SELECT count(*) FROM kept") == 0
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    again.remove()
    assert list(directory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to put its data elsewhere")
def test_the_data_of_the_demonstration_go_with_its_directory(
    monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    elsewhere = directory.parent / "elsewhere"
    monkeypatch.setattr(module, "ROOTS_DATA", elsewhere)
    with tempfile.TemporaryDirectory(dir=directory.parent) as closed:
        assert Postgres(Path(closed, "postgres"), fast=True).data.is_relative_to(elsewhere)
    with tempfile.TemporaryDirectory(dir=directory.parent) as opened:
        let_through(Path(opened))
        assert Postgres(Path(opened, "postgres"), fast=True).data.is_relative_to(opened)


def test_copied_programs_run_as_well_as_the_installed_ones(directory: Path) -> None:
    """An unprivileged user gets copies when the virtual environment lies in root's home."""
    installation = copied(find_installation(), directory)
    for program in ("postgres", "initdb"):
        answer = subprocess.run(
            [installation.bin / program, "--version"], capture_output=True, text=True, check=True
        )
        assert f" {installation.major}." in answer.stdout
    written = (directory / "complete").stat().st_mtime_ns
    copied(find_installation(), directory)
    assert (directory / "complete").stat().st_mtime_ns == written


@pytest.mark.skipif(os.geteuid() != 0, reason="only root asks on behalf of another user")
def test_who_can_enter_a_directory_is_asked_of_the_system(tmp_path: Path, directory: Path) -> None:
    user = module.unprivileged_user()
    assert user is not None
    tmp_path.chmod(0o700)
    directory.mkdir()
    assert not can_enter(tmp_path, user)
    assert can_enter(directory, user)
    directory.chmod(0o700)
    assert not can_enter(directory, user)
