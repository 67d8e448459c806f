"""All that a soak makes outside its results' directory, noted there, so that it goes in any case.

A soak that is killed cannot clean up; the next one on the same results does it first.
"""

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.soak.disk import unmount
from tests.soak.on_spark import kill_all

NOTE = "running.json"
DISK = "disk"


@dataclass(frozen=True, slots=True)
class Scratch:
    """The directory of a soak's temporary files, and the session of its processes."""

    path: Path
    session: str

    @property
    def disk(self) -> Path:
        """The directory that a small file system is mounted on."""
        return self.path / DISK

    def clean(self) -> int:
        """Kill the processes, unmount the disk, delete the files; the number of processes."""
        killed = kill_all(self.session)
        unmount(self.disk)
        shutil.rmtree(self.path, ignore_errors=True)
        return killed


@contextmanager
def scratch(directory: Path) -> Iterator[Scratch]:
    """Scratch for a soak with these results; what an earlier one left is cleaned up before."""
    note = directory / NOTE
    if note.exists():
        told = json.loads(note.read_text())
        Scratch(Path(told["path"]), told["session"]).clean()
    # Other users' servers may pass through it: PostgreSQL does not run as root.
    path = Path(tempfile.mkdtemp(prefix="weir-soak-"))
    path.chmod(0o711)
    made = Scratch(path, uuid.uuid4().hex)
    note.write_text(json.dumps(asdict(made) | {"path": str(path)}))
    try:
        yield made
    finally:
        made.clean()
        note.unlink()
