"""The event log: every event of a run's jobs, as JSON lines in a file.

When the file cannot be written any more, the log ends there; the job goes on.
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
    """Appends a line per event; each is handed to the operating system before the next event."""

    def __init__(self, path: str) -> None:
        """Begin the file anew.

        Raises:
            ConfigError: The file cannot be written.
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
            logger.warning("%s: %s; the event log ends here", self.path, error)
            self._abandon()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _abandon(self) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        with suppress(OSError):  # Closing tries to write once more, which fails again.
            file.close()
