"""Secrets handed to a process that the launcher starts: through a pipe that it reads once.

The values are in the pipe before the process starts, and once they were read nothing holds them:
no environment, command line or file has them. Its number and inode are in ``WEIR_SECRETS_FD``. The
process gets the pipe's end by inheritance; behind spark-submit's JVM, which does not pass
descriptors on, the driver reads that of its parent (``weir.secrets.job_secrets``).

Source: pipe(7), F_SETPIPE_SZ in fcntl(2).
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from controlplane.secrets import services as secrets

VARIABLE = "WEIR_SECRETS_FD"
PIPE_BYTES_MAX = 1 << 20  # More needs privileges; see /proc/sys/fs/pipe-max-size.


@dataclass(frozen=True, slots=True)
class Handed:
    """The variables and descriptors for the process."""

    environment: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[int, ...] = ()


@contextmanager
def handed_secrets(names: Iterable[str], owner: tuple[int, int] | None = None) -> Iterator[Handed]:
    """A pipe with the values of secrets, for a process that is started within the context.

    Args:
        names: None of them: no pipe.
        owner: User and group of the process, by number; None: those of the launcher.

    Raises:
        Refusal: A secret does not exist any more, or no key reads it.
        OSError: The values do not fit into a pipe.
    """
    values = secrets.values_of(names)
    if not values:
        yield Handed()
        return
    data = json.dumps(values).encode()
    read, write = os.pipe()
    try:
        try:
            _fill(write, data)
        finally:
            os.close(write)
        if owner is not None:  # The driver opens it again through /proc, which checks the owner.
            os.fchown(read, *owner)
        yield Handed({VARIABLE: f"{read}:{os.fstat(read).st_ino}"}, (read,))
    finally:
        os.close(read)


def _fill(write: int, data: bytes) -> None:
    if len(data) > PIPE_BYTES_MAX:
        raise OSError(
            f"the job's secrets have {len(data):,} bytes together, and at most "
            f"{PIPE_BYTES_MAX:,} fit; name fewer of them, or store references to larger values"
        )
    if len(data) > fcntl.fcntl(write, fcntl.F_GETPIPE_SZ):
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES_MAX)
    os.set_blocking(write, False)
    while data:  # Without a reader yet: what does not fit raises, and never blocks.
        data = data[os.write(write, data) :]
