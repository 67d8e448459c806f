"""The memory of a job's workers, one of which is killed once a checkpoint has all state."""

import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.protocol.events import CheckpointSettled, Recovered, WorkerStarted
from weir.protocol.slot_memory import MemoryLimit


@dataclass(slots=True)
class Peak:
    """The most memory of a process, in bytes."""

    resident: int = 0  # As the kernel has noted it.
    anonymous: int = 0  # As it was seen, with shared memory.

    def note(self, figures: dict[str, int]) -> None:
        """Take the present figures of ``/proc/pid/status`` in."""
        self.resident = max(self.resident, figures["VmHWM:"])
        self.anonymous = max(self.anonymous, figures["RssAnon:"] + figures["RssShmem:"])


class Watcher:
    """Kills the worker once a checkpoint has all state; notes the memory of each worker."""

    def __init__(self, hurry: Path, state_bytes: int) -> None:
        self.limits: list[MemoryLimit | None] = []
        self.peaks: dict[int, Peak] = {}  # By pid.
        self.killed: int | None = None
        self.stored = 0  # Bytes of state in the checkpoint before the kill.
        self._hurry = hurry
        self._state_bytes = state_bytes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __call__(self, event: Any) -> None:
        match event:
            case WorkerStarted(pid=pid, memory_limit=limit):
                self.limits.append(limit)
                self.peaks[pid] = Peak()
            case CheckpointSettled(failure=None, state_size=size):
                if size >= self._state_bytes and self.killed is None:
                    self.stored = size
                    (self.killed,) = self.peaks
                    self._note_peaks()
                    os.kill(self.killed, signal.SIGKILL)
            case Recovered():
                self._hurry.touch()

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            self._note_peaks()

    def _note_peaks(self) -> None:
        for pid, peak in list(self.peaks.items()):
            with suppress(OSError, KeyError):  # It has ended.
                status = Path(f"/proc/{pid}/status").read_text()
                lines = (line.split() for line in status.splitlines())
                peak.note({line[0]: int(line[1]) << 10 for line in lines if line[-1] == "kB"})
