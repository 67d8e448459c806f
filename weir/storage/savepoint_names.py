"""Names of savepoints: one rule for the command line, the API and the pages.

A name becomes the name of a directory, beside which checkpoints lie as ``chk-<number>``.
"""

import re
import secrets
from datetime import UTC, datetime

LENGTH_MAX = 80
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHECKPOINT = re.compile(r"chk-\d+")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def problem_with(name: str) -> str | None:
    """The sentence that says why a savepoint cannot have this name; None: it can."""
    if len(name) > LENGTH_MAX or not _NAME.fullmatch(name):
        return (
            f"A name has 1 to {LENGTH_MAX} letters, digits, dots, dashes and underscores, and "
            "begins with a letter or digit."
        )
    if _CHECKPOINT.fullmatch(name):
        return "chk-<number> is the name of a checkpoint."
    return None


def default_name(prefix: str, at_s: float) -> str:
    """A unique name: a prefix, the time in UTC and a random suffix.

    Args:
        at_s: The time, in seconds since the epoch.
    """
    at = datetime.fromtimestamp(at_s, UTC)
    own = f"-{at:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    plain = _NOT_IN_NAMES.sub("-", prefix).strip("-._") or "savepoint"
    return plain[: LENGTH_MAX - len(own)] + own
