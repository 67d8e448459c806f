"""Every event of the jobs of a run, as JSON lines in a file.

A file that cannot be written any more costs the rest of the log, never the job.
"""

import json
import logging
from contextlib import suppress
from typing import TextIO

from weir.errors import ConfigError
from weir.protocol.events import JobEvent
from weir.protocol.wire import encode_message

logger = logging.getLogger(__name__)


class EventLog:
    """Appends a line per event; each is on its way to the disk when the next one happens."""

    def __init__(self, path: str) -> None:
        """Begin the file anew.

        Raises:
            ConfigError: It cannot be written.
        """
        self.path = path
        try:
            self._file: TextIO | None = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        except OSError as error:
            raise ConfigError(
                f"--events: {path} cannot be written: {error.strerror or error}"
            ) from error

    def on_event(self, event: JobEvent) -> None:
        """Write one event."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(encode_message(event), separators=(",", ":")) + "\n")
        except OSError as error:
            logger.warning("%s: %s; it holds no events from here on", self.path, error)
            self._abandon()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _abandon(self) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        with suppress(OSError):  # It tries to write once more; that it cannot is known.
            file.close()
