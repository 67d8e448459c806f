"""The report of a cluster's worker for ``weir doctor``; its code travels by value, without Weir.

Only the standard library is imported, since the packages are among what is checked.
"""

import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from importlib import metadata
from typing import Any

CONNECT_S = 5.0
SPREAD_S = 0.3  # A task that ended at once would leave other workers without one.


def probe(packages: tuple[str, ...], driver: tuple[str, int], directory: str | None) -> Any:
    """The function for ``RDD.mapPartitions``: each partition yields one report."""

    def report(partition: Iterator[Any]) -> Iterator[dict[str, Any]]:
        time.sleep(SPREAD_S)
        yield {
            "host": socket.gethostname(),
            "python": ".".join(platform.python_version_tuple()[:2]),
            "executable": sys.executable,
            "packages": versions(packages),
            "driver": _connect(driver),
            "storage": "" if directory is None else _write(directory),
            "time_ns": time.time_ns(),
        }

    return report


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """The installed versions; ``missing`` for a package that is not there."""
    return {name: _version(name) for name in packages}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _connect(address: tuple[str, int]) -> str:
    """Why the driver cannot be reached; empty: it can."""
    try:
        with socket.create_connection(address, CONNECT_S):
            return ""
    except OSError as error:
        return str(error)


def _write(directory: str) -> str:
    """Why the storage cannot be used from here; empty: it can, and it is the driver's."""
    mark = os.path.join(directory, "driver")
    if not os.path.exists(mark):
        return "the driver's file is not there: it is another directory"
    made = os.path.join(directory, uuid.uuid4().hex)
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"weir doctor")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(made, mark)
        except FileExistsError:
            return ""
        finally:
            os.unlink(made)
    except OSError as error:
        return str(error)
    return "link() replaced a file that existed"
