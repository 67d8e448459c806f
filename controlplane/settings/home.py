"""The place of the control plane's data where no setting names one."""

import os
from pathlib import Path


def default_home(project: Path) -> Path:
    """``.weir`` of a checkout; of an installed Weir ``weir`` in the user's data directory.

    Source: XDG Base Directory Specification, 0.8; a relative ``XDG_DATA_HOME`` is ignored.
    """
    if (project / "pyproject.toml").is_file():
        return project / ".weir"
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    return base / "weir"
