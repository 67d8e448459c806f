"""The memory of this process's cgroup and of those above it: limits, use, and the kernel's kills.

============ ======================= ==================================
\\            version 2               version 1
============ ======================= ==================================
limit        ``memory.max``          ``memory.limit_in_bytes``
held         ``anon`` + ``shmem``    ``total_rss`` + ``total_shmem``
             of ``memory.stat``      of ``memory.stat``
kills        ``oom_kill`` of         ``oom_kill`` of
             ``memory.events``       ``memory.oom_control``
============ ======================= ==================================

The root of a hierarchy has no limit. In a container the mounted directory is the container's own
cgroup; a path outside of it, as some containers see, means that directory.

Source: the Linux kernel's documentation, ``admin-guide/cgroup-v2`` and ``cgroup-v1/memory``;
``cgroups(7)``, ``proc_pid_mountinfo(5)``.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from weir.protocol.slot_memory import CgroupMemory

_UNLIMITED = 1 << 62  # Version 1 says none as the largest page-aligned number.
_OCTAL = re.compile(r"\\(\d{3})")  # In mountinfo: a blank in a path.


@dataclass(frozen=True, slots=True)
class _Files:
    """The names of a version's files and of the figures in them."""

    limit: str
    held: tuple[str, ...]  # In memory.stat.
    kills: str


_V2 = _Files("memory.max", ("anon", "shmem"), "memory.events")
_V1 = _Files("memory.limit_in_bytes", ("total_rss", "total_shmem"), "memory.oom_control")


class Cgroup:
    """The cgroup of this process by which its memory is accounted."""

    def __init__(self, own: Path, mounted: Path, files: _Files) -> None:
        self._own = own
        self._mounted = mounted
        self._files = files

    def memory(self) -> CgroupMemory | None:
        """The lowest limit of the cgroup and those above it, and what its processes hold there."""
        limits = [(limit, at) for at in self._upwards() if (limit := self._limit(at)) is not None]
        if not limits:
            return None
        limit, at = min(limits, key=lambda known: known[0])  # Of equal ones the lowest cgroup.
        stat = _figures(at / "memory.stat")
        known = at.stat()
        return CgroupMemory(
            f"{known.st_dev}:{known.st_ino}",
            limit,
            sum(stat.get(name, 0) for name in self._files.held),
        )

    def kills(self) -> int:
        """The processes of the cgroup that the kernel has killed for want of memory so far."""
        return _figures(self._own / self._files.kills).get("oom_kill", 0)

    def _upwards(self) -> Iterator[Path]:
        yield self._own
        for above in self._own.parents:
            if not above.is_relative_to(self._mounted):
                return
            yield above

    def _limit(self, at: Path) -> int | None:
        text = _read(at / self._files.limit).strip()
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def find_cgroup(root: Path = Path("/")) -> Cgroup | None:
    """The cgroup of this process; None: memory is not accounted by cgroups.

    Args:
        root: The directory that holds ``proc`` and what ``mountinfo`` names.
    """
    paths = dict(_paths(_read(root / "proc/self/cgroup")))
    mounts = list(_mounts(_read(root / "proc/self/mountinfo")))
    for controller, files in (("memory", _V1), ("", _V2)):
        path = paths.get(controller)
        for top, point, kind, options in mounts:
            is_it = kind == "cgroup2" if files is _V2 else kind == "cgroup" and "memory" in options
            if path is None or not is_it:
                continue
            mounted = root / point.relative_to("/")
            own = mounted / path.relative_to(top) if path.is_relative_to(top) else mounted
            own = own if own.is_dir() else mounted
            if (own / "memory.stat").exists():  # Else that version accounts no memory here.
                return Cgroup(own, mounted, files)
    return None


def _paths(text: str) -> Iterator[tuple[str, PurePosixPath]]:
    """The path of the process in each controller's hierarchy; that of version 2 has no name."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, PurePosixPath(path)


def _mounts(text: str) -> Iterator[tuple[PurePosixPath, PurePosixPath, str, list[str]]]:
    """The directory of a file system that is mounted, where, its type and its options."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        top, point = (PurePosixPath(_unescaped(part)) for part in before.split()[3:5])
        kind, *_, options = after.split()
        yield top, point, kind, options.split(",")


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda escaped: chr(int(escaped[1], 8)), text)


def _figures(path: Path) -> dict[str, int]:
    """The figures of a file whose lines are a name and a number."""
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _read(path: Path) -> str:
    text = ""
    with suppress(OSError):  # It is not there, or not to be read, as in some containers.
        text = path.read_text()
    return text
