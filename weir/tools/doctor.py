"""The checks of a machine before a job runs on it: software, user, ports, storage, clock.

Each check is one finding: what was seen, and where it will not do, what to do. Those of a cluster's
workers are in ``weir.spark.workers_check``.
"""

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from urllib.parse import urlsplit

from weir.errors import ConfigError, StorageError
from weir.jvm_options import JAVA_LEAST
from weir.storage.local import LocalStore
from weir.storage.store import CheckpointStore, store_for

PACKAGE = "weir-streaming"
PYTHON_LEAST = (3, 11)
COMMAND_S, CONNECT_S = 20.0, 5.0
MASTER_ADVICE = "start the master, or name it as its page does"
SKEW_MS = 5_000  # Less than any time-out between machines.
EPOCH_LEAST = 1_700_000_000  # A clock before that was never set.
_SPARK_HOST = re.compile(r"spark://([^/]+)")
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)\s*([^;]*)")
_BOUND = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; ``advice`` is empty where all is well."""

    name: str
    seen: str
    advice: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether nothing has to be done."""
        return not self.advice

    def __str__(self) -> str:
        if self.is_ok:
            return f"ok    {self.name}: {self.seen}"
        return f"wrong {self.name}: {self.seen}; {self.advice}"


def check_python(version: Sequence[int] = sys.version_info[:3], executable: str = "") -> Finding:
    """Whether this Python is new enough."""
    seen = f"{'.'.join(map(str, version[:3]))} ({executable or sys.executable})"
    if tuple(version[:2]) < PYTHON_LEAST:
        least = ".".join(map(str, PYTHON_LEAST))
        return Finding("Python", seen, f"install Python {least} or newer, and Weir into it")
    return Finding("Python", seen)


def check_packages(
    requirements: Sequence[str] | None = None,
    version_of: Callable[[str], str] = metadata.version,
) -> Finding:
    """Whether the packages that Weir needs are installed, in versions that it knows."""
    if requirements is None:
        requirements = metadata.requires(PACKAGE) or []
    wrong, versions = [], [f"weir {version_of(PACKAGE)}"]
    for name, bounds in _needed(requirements):
        try:
            version = version_of(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if _fits(version, bounds):
            versions.append(f"{name} {version}")
        else:
            wrong.append(f"{name} is {version}, and {bounds} is needed")
    if wrong:
        return Finding("packages", ", ".join(wrong), f"pip install --upgrade {PACKAGE} repairs it")
    return Finding("packages", ", ".join(versions))


def check_java(environment: Mapping[str, str] = os.environ) -> Finding:
    """Whether Spark finds a Java that is new enough."""
    advice = f"install Java {JAVA_LEAST} or newer, or let JAVA_HOME point to it"
    home = environment.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if path is None or not os.access(path, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java on the PATH"
        return Finding("Java", where, f"{advice}; --master in-process needs none")
    try:
        ran = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", f"{path} cannot be run: {error}", advice)
    match = re.search(r'version "(\d+)[^"]*"', ran.stderr + ran.stdout)
    if match is None:
        return Finding("Java", f"{path} -version says {ran.stderr.strip()[:200]!r}", advice)
    seen = f"{match[0].split()[1].strip(chr(34))} ({path})"
    return Finding("Java", seen, "" if int(match[1]) >= JAVA_LEAST else advice)


def check_user(user_id: int | None = None) -> Finding:
    """Whether the user of this process has a name: a JVM with Spark does not start without one."""
    user_id = os.geteuid() if user_id is None else user_id
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:
        return Finding(
            "user",
            f"user id {user_id} has no name, and without one Spark does not start",
            "give it an entry in /etc/passwd, as an entrypoint of the image may; "
            "--master in-process needs none",
        )
    return Finding("user", f"{name} (user id {user_id})")


def check_ports(master: str | None = None) -> Finding:
    """Whether a port can be opened and reached here, and the master's where it names one."""
    host = socket.gethostname()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), CONNECT_S):
                pass
    except OSError as error:
        return Finding(
            "ports",
            f"a port of 127.0.0.1 cannot be opened and reached: {error}",
            "let the firewall, or the limits of the process, allow it",
        )
    match = _SPARK_HOST.match(master or "")
    if match is None:
        return Finding("ports", f"free ports of 127.0.0.1 on {host} can be opened and reached")
    if problem := unreachable_master(match[0]):
        return Finding("ports", problem, MASTER_ADVICE)
    return Finding("ports", f"free ports on {host}, and the master at {match[1]}, can be reached")


def unreachable_master(master: str) -> str:
    """Why no standalone master answers at any of its addresses; empty: one does, or none is asked.

    ``master``: by Spark's name, ``spark://host:port,host2:port2``, or that of another kind.
    """
    match = _SPARK_HOST.match(master)
    problems: list[str] = []
    for each in match[1].split(",") if match else ():
        problem = _connects(each)
        if not problem:
            return ""
        problems.append(f"{each} cannot be reached: {problem}")
    return "; ".join(problems)


def check_storage(uri: str) -> Iterator[Finding]:
    """Whether a storage does what checkpoints need; a file is created there and deleted."""
    advice = "give a directory that this user may write to, and all machines of the job reach"
    try:
        store = store_for(uri)
    except ConfigError as error:
        yield Finding("storage", str(error), advice)
        return
    with trial_directory(store) as directory:
        try:
            finding = _probe(store, uri, f"{directory}/probe")
        except StorageError as error:
            finding = Finding("storage", str(error), advice)
    yield finding


@contextmanager
def trial_directory(store: CheckpointStore) -> Iterator[str]:
    """A directory in a storage, which is left as it was."""
    directory = f"doctor-{uuid.uuid4().hex}"
    was_there = isinstance(store, LocalStore) and store.root.exists()
    try:
        yield directory
    finally:
        with suppress(StorageError):
            store.delete_prefix(directory)
            if not was_there:
                store.delete_if_empty()


def check_clock(now_s: float | None = None) -> Finding:
    """Whether the clock of this machine was ever set."""
    now_s = time.time() if now_s is None else now_s
    seen = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < EPOCH_LEAST:
        return Finding("clock", seen, "set the clock, for example by NTP")
    return Finding("clock", seen)


def skew(name: str, behind_ms: float) -> Finding:
    """The finding on a clock that is so many milliseconds behind this machine's."""
    if not behind_ms:
        return Finding(name, "no difference to this one's is seen")
    seen = f"{abs(behind_ms) / 1_000:.1f} s {'behind' if behind_ms > 0 else 'ahead of'} this one's"
    if abs(behind_ms) <= SKEW_MS:
        return Finding(name, seen)
    return Finding(name, seen, "let NTP set the clocks of all machines")


def _probe(store: CheckpointStore, uri: str, path: str) -> Finding:
    """Create, synced as every checkpoint file is; then again, which must be refused; then read."""
    begun = time.monotonic()
    first = store.create_if_absent(path, b"weir doctor")
    took_ms = (time.monotonic() - begun) * 1_000
    again = store.create_if_absent(path, b"another driver")
    read = store.read(path)
    if not first or again or read != b"weir doctor":
        return Finding(
            "storage",
            f"{uri} let a second writer replace a file that existed",
            "use a file system whose link() fails where the name exists: a local one, or NFS",
        )
    return Finding(
        "storage", f"{uri}: created if absent, synced and read; the first took {took_ms:.0f} ms"
    )


def _needed(requirements: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and bounds of the requirements without an extra."""
    for each in requirements:
        match = _REQUIREMENT.match(each)
        if match is not None and "extra ==" not in each:
            yield match[1], match[2].strip()


def _fits(version: str, bounds: str) -> bool:
    return all(
        (_numbers(version, bound) < _numbers(bound, version)) == (sign == "<")
        for sign, bound in _BOUND.findall(bounds)
    )


def _numbers(text: str, other: str) -> list[int]:
    """The numbers of a version, as many as the longer of both has."""
    numbers = [int(part) for part in re.findall(r"\d+", text.partition("+")[0])]
    return numbers + [0] * (len(re.findall(r"\d+", other)) - len(numbers))


def _connects(address: str) -> str:
    """Why nothing answers at ``host:port``; empty: something does."""
    parts = urlsplit(f"//{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 7077), CONNECT_S):
            return ""
    except (OSError, ValueError) as error:
        return str(error)
