"""The installed versions, which must be equal on the driver and in every slot."""

import platform
from functools import cache
from importlib import metadata

from weir.protocol.deployment import Versions


@cache  # Reading takes some milliseconds, and a process keeps the modules it has imported.
def installed_versions() -> Versions:
    """The installed versions, read from package metadata without importing the packages."""
    return Versions(
        weir=metadata.version("weir-streaming"),
        python=".".join(platform.python_version_tuple()[:2]),
        pyarrow=metadata.version("pyarrow"),
    )
