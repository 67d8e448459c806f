"""The memory of a worker process that the system cannot take back.

That is its anonymous and shared memory, as of a cgroup (``weir.worker.memory.cgroup``), and the
files that its imports mapped. What else of files is resident, the columns of state on local disk
above all, leaves memory when the system needs it; the kernel kills no process for its sake. On a
directory in memory such files are shared memory, and count.

Source: Linux, ``proc(5)``, ``/proc/pid/status``.
"""

from pathlib import Path

_FIGURES = {"VmRSS:", "RssAnon:", "RssShmem:", "RssFile:"}


class HeldMemory:
    """The memory of this process, asked for again and again."""

    def __init__(self) -> None:
        """The files that are resident now count from now on; no state is mapped yet."""
        _, self._files = _figures()

    def __call__(self) -> int:
        """The bytes held now. From any thread."""
        held, files = _figures()
        return held + min(files, self._files)


def _figures() -> tuple[int, int]:
    """The bytes that are anonymous or shared, and those of files; before Linux 4.5 all together."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    known = {line[0]: int(line[1]) << 10 for line in lines if line[0] in _FIGURES}
    if "RssAnon:" not in known:
        return known["VmRSS:"], 0
    return known["RssAnon:"] + known["RssShmem:"], known["RssFile:"]
