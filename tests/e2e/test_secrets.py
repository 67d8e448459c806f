"""A secret from the API to a function on a slot, and every place where it must not be."""

import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.e2e.plane import Plane, PlaneJob, wait_for
from tests.e2e.secretive import NAME, digest

MODULE = "tests.e2e.secretive"
MASK = "***"


def files_below(*roots: Path) -> Iterator[Path]:
    """Every regular file below the directories."""
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = Path(directory, name)
                if path.is_file() and not path.is_symlink():
                    yield path


def holders(value: str, roots: list[Path]) -> list[str]:
    """Files below the directories, and processes of the machine, that show a value to others."""
    wanted = value.encode()
    shown = []
    for path in files_below(*roots):
        try:
            if wanted in path.read_bytes():
                shown.append(str(path))
        except FileNotFoundError:  # It was deleted meanwhile.
            continue
    for pid in psutil.pids():
        for name in ("cmdline", "environ"):
            try:
                if wanted in Path(f"/proc/{pid}/{name}").read_bytes():
                    shown.append(f"{name} of {pid}")
            except OSError:  # It has ended.
                continue
    return shown


def open_files(job: PlaneJob) -> Iterator[tuple[str, bytes]]:
    """Files on disks that processes of the job hold open, those without a name as well.

    Those of an undumpable process are for root alone.
    """
    for process in job.session:
        try:
            entries = list(Path(f"/proc/{process.pid}/fd").iterdir())
        except PermissionError:
            continue
        for entry in entries:
            try:
                status = entry.stat()
                where = os.readlink(entry)
                is_file = stat.S_ISREG(status.st_mode) and not where.startswith("/memfd:")
                if is_file and status.st_size < 1 << 26:
                    yield f"{process.pid}: {where}", entry.read_bytes()
            except OSError:
                continue


def log_of(job: PlaneJob) -> str:
    """The log of the newest driver, whose bytes API and pages show."""
    (driver, *_) = job.get("drivers")["results"]
    home = job.plane.stack.home
    return (home / "drivers" / job.id / str(driver["number"]) / "driver.log").read_text()


def test_a_secret_reaches_driver_and_slots_and_is_seen_nowhere_else(
    plane: Plane, tmp_path: Path
) -> None:
    value = f"pass/{secrets.token_hex(16)} word"
    stored = plane.client.put(f"secrets/{NAME}", {"value": value})
    assert "value" not in stored
    assert value not in json.dumps(plane.client.get("secrets"))

    told = tmp_path / "told"
    told.mkdir()
    submission = {
        "name": "secretive",
        "pipeline": {"kind": "module", "module": MODULE},
        "parallelism": 2,
        "parameters": {"told": str(told)},
        "secrets": [NAME],
    }
    operation = plane.client.post("jobs", submission)
    job = plane.job(operation["job"], tmp_path)
    job.await_status("running")
    assert job.get()["options"]["secrets"] == [NAME]
    job.await_completed(beyond=0)

    # It was used: by the driver, and by each subtask in its slot.
    for name in ("driver", "slot-0", "slot-1"):
        wait_for((told / name).exists, name)
        assert (told / name).read_text() == digest(value), name

    # What was printed is there, and masked.
    for line in (
        f"the driver prints {MASK}",
        *(f"slot {index} prints {MASK}" for index in (0, 1)),
        *(f"slot {index} complains of {MASK}" for index in (0, 1)),
    ):
        wait_for(lambda line=line: line in log_of(job), line)

    roots = [plane.stack.home, tmp_path, Path(os.environ["SPARK_LOCAL_DIRS"])]
    needle = secrets_of(value)
    assert holders(needle, roots) == []
    assert holders(digest(value), roots), "the search finds what is there"
    looked_at = dict(open_files(job))
    assert looked_at
    assert [name for name, data in looked_at.items() if needle.encode() in data] == []

    # It raises with the value in its message: every cause is masked.
    (told / "raise").touch()
    wait_for(lambda: job.get("exceptions")["results"], "an exception")
    said = json.dumps([job.get("exceptions"), job.get("attempts"), job.get(), job.get("graph")])
    assert f"the warehouse refuses {MASK}" in said
    assert needle not in said
    plane.client.post(f"jobs/{job.id}/cancel")
    job.await_status("canceled", "failed")
    assert holders(needle, roots) == []
    wait_for(lambda: f"the warehouse refuses {MASK}" in log_of(job), "the cause in the log")


def secrets_of(value: str) -> str:
    """The part of the value that no quoting changes."""
    return value.removeprefix("pass/").removesuffix(" word")


def test_a_driver_whose_secret_is_gone_does_not_start_and_says_so(
    plane: Plane, tmp_path: Path
) -> None:
    """Deleted between two drivers of a job."""
    name = "SHORT_LIVED"
    plane.client.put(f"secrets/{name}", {"value": "for a moment"})
    submission = {
        "name": "secretive",
        "pipeline": {"kind": "module", "module": "tests.e2e.pipeline"},
        "parallelism": 2,
        "parameters": {"output": str(tmp_path / "output"), "records": "100000", "rate": "50"},
        "secrets": [name],
    }
    operation = plane.client.post("jobs", submission)
    job = plane.job(operation["job"], tmp_path)
    job.await_status("running")
    plane.client.delete(f"secrets/{name}")
    job.submit_process.kill()
    said = wait_for(
        lambda: [d["cause"] for d in job.get("drivers")["results"] if name in d["cause"]],
        "a driver that could not be started",
    )
    assert f"There is no secret {name}; store it again." in said[0]
    plane.client.post(f"jobs/{job.id}/cancel")
    job.await_status("canceled", "failed")
