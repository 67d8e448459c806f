"""The files of a source: their names, and the check that a split's file is still the same."""

import os
import socket
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from weir.errors import SourceChangedError, UserError


def list_files(given: str, kind: str, extension: str) -> list[str]:
    """The file at a path, or all files with ``extension`` below a directory, or those of a glob.

    Names that start with ``_`` or ``.`` below a directory are left out.

    Raises:
        UserError: There are none.
    """
    path = Path(given)
    if path.is_file():
        return [given]
    if path.is_dir():
        files = [
            str(file)
            for file in path.rglob(f"*{extension}")
            if file.is_file() and not any(part[0] in "_." for part in file.relative_to(path).parts)
        ]
    elif has_magic(given):
        files = [file for file in glob(given, recursive=True) if os.path.isfile(file)]
    else:
        raise UserError(f"{given} does not exist; give a {kind} file, directory or glob")
    if not files:
        names = f" (names must end in {extension})" if extension else ""
        raise UserError(f"{given} has no {kind} files{names}")
    return sorted(files)


def identity(path: str) -> dict[str, Any]:
    """The fields of a split by which ``check_unchanged`` knows its file again."""
    stat = os.stat(path)
    return {"path": path, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def check_unchanged(split: dict[str, Any]) -> None:
    """Refuse a file that is gone or another one.

    Raises:
        SourceChangedError: It changed since the split was made.
    """
    path = split["path"]
    try:
        stat = os.stat(path)
    except FileNotFoundError as error:
        raise SourceChangedError(
            f"{path} is gone from {socket.gethostname()}; the job reads it and cannot go on "
            "without it. Put the same file back, or mount it there as it is for the driver"
        ) from error
    if (stat.st_size, stat.st_mtime_ns) != (split["size"], split["mtime_ns"]):
        raise SourceChangedError(
            f"{path} changed since the job first read it: {split['size']} bytes modified at "
            f"{split['mtime_ns']} ns then, {stat.st_size} bytes at {stat.st_mtime_ns} ns now. Put "
            "the same file back, times included, or start afresh"
        )
