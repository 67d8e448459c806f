"""Nothing that runs jobs reads the wall clock by itself: ``weir.common.clock`` says why."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from weir.own_frames import ROOMS

ROOT = Path(weir.__file__).parent
READS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
ALLOWED = {
    "common/clock.py": "the base of a process's clock: read once",
    "channels/authority.py": "the validity of certificates, checked by OpenSSL's clock",
    "cli/delete_savepoint.py": "a stamp for people, in the note of what was deleted",
    "cli/savepoint.py": "until when a request is no leftover, told to another process",
    "spark/worker_probe.py": "the clock of a worker's machine, which `weir doctor` compares",
    "spark/workers_check.py": "the clock of this machine, which it is compared with",
    "storage/local_directory.py": "the age of directories, whose stamps this machine made",
    "tools/doctor.py": "whether the clock of this machine was ever set",
}


def wall_clock_reads(source: str) -> Iterator[tuple[int, str]]:
    """Lines that read the wall clock, called or handed on as a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if node.attr in READS.get(name, ()):
                yield node.lineno, f"{name}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in READS["time"]:
                    yield node.lineno, f"from time import {alias.name}"


def reads_by_file() -> dict[str, list[tuple[int, str]]]:
    files = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    reads = {str(p.relative_to(ROOT)): list(wall_clock_reads(p.read_text())) for p in files}
    assert len(reads) > 100
    return {path: lines for path, lines in reads.items() if lines}


def test_no_wall_clock_is_read_where_jobs_are_run() -> None:
    """Take the time from the clock that is handed in; a new exception needs a reason above."""
    assert {path: lines for path, lines in reads_by_file().items() if path not in ALLOWED} == {}


def test_every_exception_is_one() -> None:
    assert reads_by_file().keys() == ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time\nx = lambda: time.time_ns() // 1_000_000",
        "def f(now=time.time): ...",
        "from time import time_ns",
        "from datetime import datetime\ndatetime.now(UTC)",
        "import datetime\ndatetime.datetime.utcnow()",
    ],
)
def test_a_read_is_noticed(source: str) -> None:
    assert list(wall_clock_reads(source))


def test_monotonic_time_is_none() -> None:
    assert not list(wall_clock_reads("import time\ntime.monotonic()\ntime.sleep(1)"))
