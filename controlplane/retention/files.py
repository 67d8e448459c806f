"""Retention of the files of this machine's drivers, by its launcher.

**Logs.** A driver writes to a descriptor that it was given, so its log cannot be moved away from
under it. The oldest part of a log beyond ``WEIR_DRIVER_LOG_BYTES_MAX`` is given back to the disk
where it lies (``FALLOC_FL_PUNCH_HOLE``): nothing is copied, no line that is just being written is
lost, and offsets, by which pages read on, stay the same. Where the file system cannot do that, the
log is cut and its newest half appended again; lines written in that moment may come twice or out of
order, or be lost.

**Directories.** Those of drivers whose rows retention has removed are deleted by a process of their
own; so are answers of previews that a machine left behind as it went down. Not before
``ORPHANED_AFTER_S`` without a write: a database that was restored from a backup does not know the
newest drivers.

Source: fallocate(2).
"""

import ctypes
import errno
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from django.conf import settings

from controlplane.base import clock, logs
from controlplane.retention.models import Tally
from controlplane.retention.rows import note
from jobs.drivers import driver_files, processes, user_processes
from jobs.drivers.driver_claims import here
from jobs.models import OPEN_OPERATIONS, Driver, Operation
from weir.untrusted_files import UntrustedFileError, open_regular, read

logger = logging.getLogger(__name__)

KIND = "driver_files"
WALKED_EVERY = timedelta(minutes=10)  # All directories; logs of running drivers, at each look.
ORPHANED_AFTER_S = 7 * 86_400.0
REMOVED_MAX = 50  # Directories in one look: each deletion is a process.
_ANSWERS = "answers"
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_BLOCK = 4_096
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)


def look() -> int:
    """Cut large logs of running drivers, and now and then remove directories; return how many."""
    now = clock.now()
    for driver in Driver.objects.filter(here(), stopped_at=None).only("job_id", "number"):
        with logs.guarding(logger, "a driver's log could not be cut", job=driver.job_id):
            cut(driver_files.log_path(driver))
    tally, _ = Tally.objects.get_or_create(kind=KIND, place=processes.host_name()[:200])
    if tally.counted_at is not None and tally.counted_at > now - WALKED_EVERY:
        return 0
    try:
        walked = _walk()
    except OSError as error:
        note(tally, 0, now, problem=f"{type(error).__name__}: {error}")
        raise
    values = {"kept": walked.kept, "kept_bytes": walked.kept_bytes, "counted_at": now}
    note(tally, walked.removed, now, **values)
    return walked.removed


@dataclass(slots=True)
class _Walked:
    """The directories of this machine's drivers."""

    kept: int = 0
    kept_bytes: int = 0  # Of their logs.
    removed: int = 0


def _walk() -> _Walked:
    walked, root = _Walked(), driver_files.root()
    for directory in _directories(root):
        if directory.name == _ANSWERS:
            _remove_answers(directory, walked)
            continue
        numbers = [one for one in _directories(directory) if one.name.isdecimal()]
        drivers = Driver.objects.filter(job=directory.name)
        known = set(drivers.values_list("number", flat=True)) if numbers else set()
        for one in numbers:
            if int(one.name) in known:
                walked.kept += 1
                walked.kept_bytes += _bytes_of(one / driver_files.LOG_NAME)
            elif _is_orphaned(one / driver_files.LOG_NAME, one):
                _remove(one, walked)
        if not numbers and _is_orphaned(directory):
            _remove_empty(directory)
    return walked


def _remove_answers(directory: Path, walked: _Walked) -> None:
    """Remove the answers of operations that have ended; usually their launcher has."""
    listed = {one: _uuid(one.name) for one in _directories(directory) if _is_orphaned(one)}
    waiting = Operation.objects.filter(status__in=OPEN_OPERATIONS)
    known = set(waiting.filter(pk__in=filter(None, listed.values())).values_list("pk", flat=True))
    for one, operation in listed.items():
        if operation is not None and operation not in known:
            _remove(one, walked)


def _remove(directory: Path, walked: _Walked) -> None:
    if walked.removed < REMOVED_MAX:
        logger.info("removing %s, which no row names any more", directory)
        user_processes.remove(directory)
        walked.removed += 1


def _remove_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def _directories(path: Path) -> Iterator[Path]:
    """The directories in a directory, no links; none if it is missing."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    yield from (path / name for name in sorted(names))


def _is_orphaned(*paths: Path) -> bool:
    """Whether none of these was written to for long."""
    now = time.time()  # File systems have the machine's clock.
    for path in paths:
        try:
            if now - path.lstat().st_mtime < ORPHANED_AFTER_S:
                return False
        except FileNotFoundError:
            continue
    return True


def _bytes_of(path: Path) -> int:
    """The bytes of a file on the disk; 0 without one."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


# Logs ---------------------------------------------------------------------------------------------


def cut(path: Path, bytes_max: int | None = None) -> int:
    """Give the oldest part of a large log back to the disk; return how many bytes are kept.

    Args:
        bytes_max: Half of so many stay; None: of ``WEIR_DRIVER_LOG_BYTES_MAX``. 0: no limit.
    """
    limit: int = settings.WEIR_DRIVER_LOG_BYTES_MAX if bytes_max is None else bytes_max
    kept = _bytes_of(path)
    if not limit or kept <= limit:
        return kept
    try:
        file = open_regular(path, below=driver_files.root(), appends=True)
    except UntrustedFileError as error:
        logger.warning("a log is not cut, because %s", error.problem)
        return kept
    with file:
        size = os.fstat(file.fileno()).st_size
        length = max(0, size - limit // 2) // _BLOCK * _BLOCK
        try:
            _punch(file.fileno(), length)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            newest = read(file, limit // 2, offset=max(0, size - limit // 2))
            file.truncate(0)
            file.write(newest.partition(b"\n")[2] or newest)
    logger.info("gave the oldest %d bytes of %s back to the disk", length, path)
    return _bytes_of(path)


def _punch(handle: int, length: int) -> None:
    """Give the first bytes of a file back to the disk; its size stays.

    Raises:
        OSError: The file system cannot do that, or failed.
    """
    if length <= 0:
        return
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(handle, _PUNCH_HOLE | _KEEP_SIZE, 0, length) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
