"""Settings of the stack that runs on a home directory, for commands that are started beside it.

It is known by its lock, so that a stack that was killed, or another program on its ports, is not
taken for it. Needs neither Django nor its settings.
"""

import fcntl
from pathlib import Path

from controlplane.embedded.server import LOOPBACK

URL_FILE = "url"  # Below ``run/``: the web service's address.


def running_settings(home: Path) -> dict[str, str]:
    """The settings by which a command finds the stack of ``home``; empty where none runs."""
    if not _is_locked(home / "lock"):
        return {}
    try:
        database, queues = (_secrets(home / name) for name in ("postgres", "redis"))
        url = (home / "run" / URL_FILE).read_text().strip()
    except OSError:  # It is coming up, or belongs to another user.
        return {}
    return {
        "DATABASE_URL": f"postgres://weir:{database[0]}@{LOOPBACK}:{database[1]}/weir",
        "REDIS_URL": f"redis://:{queues[0]}@{LOOPBACK}:{queues[1]}/0",
        "WEIR_URL": url,
    }


def _secrets(directory: Path) -> tuple[str, str]:
    return (directory / "password").read_text().strip(), (directory / "port").read_text().strip()


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
