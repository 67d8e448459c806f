"""The log of a driver that a control plane keeps: every line says which job and driver it is of."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, job: str, driver: int) -> None:
        super().__init__()
        self._fields = {"job": job, "driver": driver}

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
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
    """Have everything from the level of information on written to a stream."""
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
    # py4j says of every command that it was sent, and of every lost connection whole stacks.
    logging.getLogger("py4j").setLevel(logging.WARNING)


def log_driver(job: str, driver: int) -> None:
    """Log to standard error: lines for people on a terminal, JSON where it is kept."""
    log_to(sys.stderr, job, driver, plain=sys.stderr.isatty())
