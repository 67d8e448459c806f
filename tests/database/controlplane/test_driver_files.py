"""Files of drivers: large logs are cut without losing a line, directories go with their rows."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.launcher_role import ensure_launcher_role
from controlplane.retention import files, tasks
from controlplane.retention.models import Tally
from jobs.drivers import driver_files, processes, user_processes
from jobs.drivers.driver_account import create_log
from jobs.models import Driver, Job
from tests import factories
from tests.database.jobs.test_launcher_role import PASSWORD, ROLE, as_launcher
from tests.waiting import wait_until
from weir.untrusted_files import first_kept

pytestmark = pytest.mark.django_db

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def root(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    settings.WEIR_HOME = tmp_path
    settings.WEIR_DRIVERS = tmp_path / "drivers"
    settings.WEIR_DRIVERS.mkdir()
    settings.WEIR_DRIVER_LOG_BYTES_MAX = LIMIT
    yield settings.WEIR_DRIVERS
    wait_until(lambda: user_processes.reap() or not user_processes._removals, "rm has ended")


def directory(job: str, number: int | str, *, days: float = 30.0, log: str = "a line\n") -> Path:
    """A driver's directory that was last written to so long ago."""
    path = driver_files.root() / job / str(number)
    path.mkdir(parents=True)
    (path / "driver.log").write_text(log)
    then = time.time() - days * 86_400
    for one in (path / "driver.log", path, path.parent):
        os.utime(one, (then, then))
    return path


def here(job: Job, number: int = 1, **columns: object) -> Driver:
    """A driver of this machine that runs."""
    place = {"launched_by": processes.host_name(), "boot_id": processes.boot_id()}
    return factories.driver(job, number, **place, **columns)


def look() -> int:
    """A look at everything, whenever the last one was."""
    Tally.objects.update(counted_at=None)
    return files.look()


# Logs ---------------------------------------------------------------------------------------------


def numbered_lines(text: str) -> list[int]:
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("line ")]


@pytest.fixture(params=["given back", "cut"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of making a log smaller; the second is that of file systems without holes."""
    if request.param == "cut":

        def refuse(handle: int, length: int) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(files, "_punch", refuse)
    return str(request.param)


def test_the_newest_part_of_a_large_log_stays_and_its_writer_goes_on(root: Path, way: str) -> None:
    driver = here(factories.job())
    path = driver_files.log_path(driver)
    path.parent.mkdir(parents=True)
    handle = create_log(path, None)  # As a driver gets it.
    try:
        count = 0
        for _ in range(3):
            while path.stat().st_blocks * 512 <= LIMIT:
                lines = "".join(f"line {n} {'x' * 80}\n" for n in range(count, count + 1_000))
                os.write(handle, lines.encode())
                count += 1_000
            files.look()
            assert path.stat().st_blocks * 512 <= LIMIT // 2 + 8_192
    finally:
        os.close(handle)
    part = driver_files.read(driver, None, 1 << 20)
    kept = numbered_lines(part.text)
    assert kept[-1] == count - 1
    assert kept == list(range(kept[-1] - len(kept) + 1, count))  # In order, without a gap.
    assert len(kept) * 90 > LIMIT // 3
    assert "\0" not in part.text


def test_lines_that_are_written_meanwhile_are_all_there(root: Path) -> None:
    """Given back while a process writes as fast as it can: nothing behind the cut is missing."""
    driver = here(factories.job())
    path = driver_files.log_path(driver)
    path.parent.mkdir(parents=True)
    handle = create_log(path, None)
    stop = root / "stop"  # Empty: to stop; then the writer's number of lines.
    program = (
        "import os, sys\nn = 0\nwhile n < 200_000 or not os.path.exists(sys.argv[1]):\n"
        "    os.write(1, b''.join(b'line %d %s\\n' % (m, b'x' * 60) for m in range(n, n + 100)))\n"
        "    n += 100\n"
        "open(sys.argv[1], 'w').write(str(n))\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, stop], stdout=handle)
    os.close(handle)
    cuts = 0
    try:
        while writer.poll() is None:
            before = path.stat().st_blocks
            files.cut(path)
            cuts += path.stat().st_blocks < before
            if cuts > 3:
                stop.touch()
    finally:
        writer.kill()
        writer.wait()
    count = int(stop.read_text())
    with path.open("rb") as file:
        file.seek(first_kept(file))
        kept = numbered_lines(file.read().partition(b"\n")[2].decode())
    assert kept == list(range(kept[0], count))
    assert kept[0] > 0


def test_the_page_shows_what_is_kept_of_a_cut_log(client: Client, root: Path) -> None:
    driver = here(factories.job())
    path = driver_files.log_path(driver)
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"line {n} {'x' * 80}\n" for n in range(20_000)))
    files.cut(path)
    client.force_login(factories.user(Role.OPERATOR))
    address = f"/jobs/{driver.job_id}/logs/"
    end = client.get(address).content.decode()
    assert "line 19999" in end
    assert "are no longer kept" in end
    begin = client.get(address, {"from": "0"}).content.decode()
    assert "\N{REPLACEMENT CHARACTER}" not in begin
    assert "line 1" in begin
    data = client.get(f"{address}1/data", {"from": "0"}).json()
    assert len(data["entries"]) > 1
    assert all("x" * 40 in entry["text"] + entry["more"] for entry in data["entries"][1:])
    downloaded = b"".join(client.get(f"{address}1/download"))
    assert b"\0" not in downloaded
    assert len(downloaded) < LIMIT
    assert downloaded.endswith(b"\n")


def test_a_log_that_is_small_or_has_no_limit_stays_as_it_is(settings: Settings) -> None:
    driver = here(factories.job())
    path = driver_files.log_path(driver)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * (LIMIT // 2))
    look()
    assert path.stat().st_blocks * 512 == LIMIT // 2
    settings.WEIR_DRIVER_LOG_BYTES_MAX = 0
    path.write_bytes(b"x" * (2 * LIMIT))
    look()
    assert path.read_bytes() == b"x" * (2 * LIMIT)


def test_a_log_that_user_code_has_replaced_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = here(factories.job())
    path = driver_files.log_path(driver)
    path.parent.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * (2 * LIMIT))
    os.link(secret, path)
    look()
    assert secret.read_bytes() == b"s" * (2 * LIMIT)
    assert "a log is not cut, because it is another file's second name" in caplog.text


# Directories --------------------------------------------------------------------------------------


def test_the_directory_of_a_driver_without_a_row_goes(root: Path) -> None:
    job = factories.job()
    factories.driver(job, 2)
    gone, kept = directory(job.pk, 1), directory(job.pk, 2)
    other = directory("job-that-is-gone", 7)
    young = directory(job.pk, 3, days=1)
    strange = directory(job.pk, "notes")
    assert look() == 2
    wait_until(lambda: not gone.exists() and not other.exists(), "both are deleted")
    assert kept.exists()
    assert young.exists()
    assert strange.exists()
    tally = Tally.objects.get(kind=files.KIND, place=processes.host_name())
    assert (tally.removed, tally.kept) == (2, 1)
    assert tally.kept_bytes == (kept / "driver.log").stat().st_blocks * 512
    assert look() == 0


def test_the_empty_directory_of_a_job_goes_later(root: Path) -> None:
    path = directory("job-that-is-gone", 1)
    look()
    wait_until(lambda: not path.exists(), "the driver's directory is deleted")
    assert path.parent.exists()
    os.utime(path.parent, (0, 0))
    look()
    assert not path.parent.exists()


def test_answers_that_a_machine_left_behind_go(root: Path) -> None:
    open_one = factories.operation(factories.job(), kind="preview", status="running")
    ended = factories.operation(factories.job(), kind="preview")
    kept, over = directory("answers", str(open_one.pk)), directory("answers", str(ended.pk))
    unknown, young = directory("answers", str(uuid4())), directory("answers", str(uuid4()), days=1)
    assert look() == 2
    wait_until(lambda: not over.exists() and not unknown.exists(), "both are deleted")
    assert kept.exists()
    assert young.exists()


def test_links_among_the_directories_are_not_followed(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "1"
    outside.mkdir(parents=True)
    (outside / "driver.log").write_text("kept")
    os.utime(outside / "driver.log", (0, 0))
    os.utime(outside, (0, 0))
    (root / "job-x").symlink_to(outside.parent)
    assert look() == 0
    assert (outside / "driver.log").read_text() == "kept"


def test_directories_are_looked_at_now_and_then_only(root: Path) -> None:
    look()
    directory("job-that-is-gone", 1)
    assert files.look() == 0
    Tally.objects.update(counted_at=clock.now() - files.WALKED_EVERY)
    assert files.look() == 1


def test_a_look_removes_so_many_directories_and_no_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "REMOVED_MAX", 2)
    for number in range(1, 6):
        directory("job-that-is-gone", number)
    assert look() == 2


def test_the_launchers_role_suffices(root: Path) -> None:
    ensure_launcher_role(ROLE, PASSWORD)
    directory("job-that-is-gone", 1)
    with as_launcher():
        tasks.launch_retention()
    assert Tally.objects.get(kind=files.KIND).removed == 1
