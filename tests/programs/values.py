"""Imports of generated programs beside Weir: classes that a pickle needs by name, and files."""

import atexit
import hashlib
import os
import tempfile
from collections.abc import Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class Colour(Enum):
    """Members are keys."""

    RED = 1
    GREEN = 2


@cache
def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="weir-programs-"))
    owner = os.getpid()  # A fork of it leaves the files to it.
    atexit.register(lambda: remove_files() if os.getpid() == owner else None)
    return directory


def parquet_of(
    rows: Sequence[dict[str, Any]], *, files: int, group_rows: int, below: Path | None = None
) -> str:
    """A directory of Parquet files with these rows in order; the same one for the same rows.

    It lies ``below`` a directory of the caller's; without one, in the system's temporary directory,
    and is left to ``remove_files``.
    """
    named = f"{rows!r} {files} {group_rows}"
    path = (below or _directory()) / hashlib.sha256(named.encode()).hexdigest()[:24]
    if not path.exists():
        whole = pa.Table.from_pylist(list(rows))
        making = path.with_suffix(".making")
        making.mkdir(exist_ok=True)
        share = -(-len(rows) // files)
        for number in range(files):
            part = whole.slice(number * share, share)
            pq.write_table(part, making / f"{number}.parquet", row_group_size=group_rows)
        making.rename(path)
    return str(path)


def remove_files() -> None:
    """Delete every file that ``parquet_of`` wrote in this process."""
    if not _directory.cache_info().currsize:
        return
    for path in sorted(_directory().rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    _directory().rmdir()
    _directory.cache_clear()
