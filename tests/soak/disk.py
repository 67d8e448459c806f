"""The disk that holds the checkpoints of the rounds: small, so that it can be filled, or refused.

It is a file system of its own in memory, which only root may mount. Without it, what needs it is
left out of the schedules.
"""

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.soak.schedule import Act
from tests.waiting import wait_until

MEBIBYTES = 64
FILLER = ".filler"
CHUNK = bytes(1 << 16)
REFILL_S = 0.02


class Disk:
    """A directory that is a small file system, where this user may mount one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={MEBIBYTES}m,mode=0711"
        mount = ["mount", "-t", "tmpfs", "-o", options, "weir-soak", str(path)]
        may = os.geteuid() == 0
        self._is_mounted = may and not subprocess.run(mount, capture_output=True).returncode

    @property
    def cannot(self) -> frozenset[Act]:
        """The acts that this disk does not allow."""
        return frozenset() if self._is_mounted else frozenset({Act.FULL_DISK, Act.REFUSE})

    @contextmanager
    def full(self) -> Iterator[None]:
        """No byte is free within the context, also where files are deleted meanwhile."""
        filler, over = self.path / FILLER, threading.Event()
        with filler.open("wb", buffering=0) as file:
            self._fill(file.fileno())

            def keep() -> None:
                while not over.wait(REFILL_S):
                    self._fill(file.fileno())

            keeper = threading.Thread(target=keep, name="soak-filler")
            keeper.start()
            try:
                yield
            finally:
                over.set()
                keeper.join()
                filler.unlink()

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Nothing can be written within the context: the file system is read-only."""
        # Busy while a file is open for writing, which those of checkpoints are for a moment.
        wait_until(lambda: self._remount("ro"), "the disk is read-only", poll_s=0.001)
        try:
            yield
        finally:
            wait_until(lambda: self._remount("rw"), "the disk may be written to")

    def close(self) -> None:
        """Unmount it; processes that still have files open keep those alone."""
        if self._is_mounted:
            unmount(self.path)

    def _remount(self, how: str) -> bool:
        command = ["mount", "-o", f"remount,{how}", str(self.path)]
        return not subprocess.run(command, capture_output=True).returncode

    @staticmethod
    def _fill(file: int) -> None:
        size = len(CHUNK)
        while size:
            try:
                os.write(file, CHUNK[:size])
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2


def unmount(path: Path) -> None:
    """Unmount what is mounted there."""
    while path.is_mount():
        subprocess.run(["umount", "--lazy", str(path)], check=True)
