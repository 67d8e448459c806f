"""Static files and, beside each that gets smaller by it, the same compressed.

``collectstatic`` makes them once, as small as gzip can: plotly.js alone has 1.5 or 4.8 MB. What is
served from them is decided by ``controlplane.static``.
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
    """Files of a directory; ``x.js`` is accompanied by ``x.js.gz``."""

    def post_process(
        self, paths: Mapping[str, Any], dry_run: bool = False, **_: Any
    ) -> Iterator[tuple[str, str, bool]]:
        """Compress what ``collectstatic`` has found, unless that was done since it changed.

        Yields:
            The name of a file, that of the compressed one, and that there is something new.
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
        beside.replace(target)  # A server may be reading: it finds the whole of it or none.
        return True


def is_current(compressed: Path, of: os.stat_result) -> bool:
    """Whether a compressed file is there, and made since the other one was written."""
    try:
        return compressed.stat().st_mtime_ns >= of.st_mtime_ns
    except FileNotFoundError:
        return False
