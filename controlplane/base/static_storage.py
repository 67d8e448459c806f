"""Static files and, beside each that compresses well, its compressed copy.

``collectstatic`` makes the copies once, as small as gzip can: plotly.js alone has 1.5 or 4.8 MB.
``controlplane.static`` decides which of the two is served.
"""

import gzip
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.storage import StaticFilesStorage

SUFFIX = ".gz"
BYTES_MIN = 1_000  # Smaller files are a single packet either way.
GAIN_MIN = 0.1  # Images and fonts are compressed already.


class CompressedStaticFilesStorage(StaticFilesStorage):
    """Static files in a directory; ``x.js.gz`` lies beside ``x.js``."""

    def post_process(
        self, paths: Mapping[str, Any], dry_run: bool = False, **_: Any
    ) -> Iterator[tuple[str, str, bool]]:
        """Compress the collected files, except those unchanged since they were compressed.

        Yields:
            The name of a file, the name of its compressed copy, and True: the copy is new.
        """
        if dry_run:
            return
        for name in paths:
            if self._compress(Path(self.path(name))):
                yield name, name + SUFFIX, True

    def _compress(self, file: Path) -> bool:
        target = file.with_name(file.name + SUFFIX)
        if is_current(target, file.stat()):
            return False
        content = file.read_bytes()
        packed = gzip.compress(content, mtime=0) if len(content) >= BYTES_MIN else content
        if len(packed) > len(content) * (1 - GAIN_MIN):
            target.unlink(missing_ok=True)
            return False
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        beside.write_bytes(packed)
        beside.replace(target)  # A server that reads meanwhile gets the old or the new file, whole.
        return True


def is_current(compressed: Path, of: os.stat_result) -> bool:
    """Whether a compressed copy exists and is not older than its original, ``of``."""
    try:
        return compressed.stat().st_mtime_ns >= of.st_mtime_ns
    except FileNotFoundError:
        return False
