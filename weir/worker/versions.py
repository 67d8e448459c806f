"""What is installed here: it must be equal on the driver and in every slot."""

import platform
from functools import cache
from importlib import metadata

from weir.protocol.deployment import Versions


@cache  # Reading it takes some milliseconds, and a process keeps what it has imported.
def installed_versions() -> Versions:
    """What is installed here, found without importing it."""
    return Versions(
        weir=metadata.version("weir-streaming"),
        python=".".join(platform.python_version_tuple()[:2]),
        pyarrow=metadata.version("pyarrow"),
    )
