"""The command that starts the control plane as a process of its own.

The control plane's packages (``controlplane``, ``jobs``, ``checkpoints``, ``frontend``) have names
that others may use as well, so an installed Weir keeps them in one directory that is not on
Python's path: ``weir_control_plane``, beside ``weir``. Only processes of the control plane get it.
Weir itself imports none of them, and no Django.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import weir
from weir.errors import ConfigError

INSTALLED = "weir_control_plane"
SETTINGS = "controlplane.settings.dev"
EXTRAS = "weir-streaming[control-plane,embedded]"
# One package of each part: the web service, the workers, the database.
NEEDED = ("django", "rest_framework", "celery", "redis", "psycopg2", "uvicorn")


def project_directory() -> Path:
    """The directory of the control plane's packages: the checkout, or the installed one.

    Raises:
        ConfigError: This Weir was installed without them.
    """
    root = Path(weir.__file__).resolve().parent.parent
    for directory in (root / INSTALLED, root):
        if (directory / "controlplane" / "settings").is_dir():
            return directory
    raise ConfigError(
        f"{root} has no control plane, neither in {INSTALLED} nor beside weir; install the wheel, "
        "or the whole checkout"
    )


def command(name: str, *arguments: str, settings: str = SETTINGS) -> list[str]:
    """The command line of one of the control plane's commands, such as ``weir_up``.

    The working directory is not on the path of the new process: files of the user's may have the
    names of packages.

    Raises:
        ConfigError: The control plane's packages, or those that it needs, are not installed.
    """
    directory = project_directory()
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise ConfigError(
            f"the control plane needs {', '.join(missing)}, not installed for {sys.executable}: "
            f"{sys.executable} -m pip install '{EXTRAS}'"
        )
    django = (sys.executable, "-P", "-m", "django")
    where = (f"--settings={settings}", f"--pythonpath={directory}")
    return [*django, name, *where, *arguments]


def run(name: str, *arguments: str, settings: str = SETTINGS) -> NoReturn:
    """Become the process of one of the control plane's commands.

    Raises:
        ConfigError: As from ``command``.
    """
    words = command(name, *arguments, settings=settings)
    sys.stdout.flush()
    os.execv(words[0], words)
