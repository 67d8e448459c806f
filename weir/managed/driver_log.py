"""The log of a managed driver: every line names its job and driver."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO


class JsonLines(logging.Formatter):
    """A formatter of log records: one JSON object a line."""

    def __init__(self, job: str, driver: int) -> None:
        super().__init__()
        self._fields = {"job": job, "driver": driver}

    def format(self, record: logging.LogRecord) -> str:
        """The line of a log record."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to(stream: TextIO, job: str, driver: int, *, plain: bool) -> None:
    """Write log records of level INFO and above to a stream."""
    handler = logging.StreamHandler(stream)
    if plain:
        about = f"{job}/{driver}".replace("%", "%%")
        text = f"%(asctime)s %(levelname)s {about} %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
    else:
        handler.setFormatter(JsonLines(job, driver))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # py4j logs every command that it sends, and whole stacks for every lost connection.
    logging.getLogger("py4j").setLevel(logging.WARNING)


def log_driver(job: str, driver: int) -> None:
    """Log to standard error: plain lines on a terminal, else JSON."""
    log_to(sys.stderr, job, driver, plain=sys.stderr.isatty())
