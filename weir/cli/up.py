"""``weir up`` and ``weir manage``: the control plane, and its other commands."""

import argparse
import os
from argparse import ArgumentParser, Namespace
from typing import NoReturn

from weir.tools import control_plane

UP_EPILOG = """\
examples:
  weir up
  weir up --demo                                       with a job that replays flights for ever
  weir up --home /data/weir --port 8080 --keep-jobs

Starts PostgreSQL, Redis, web, workers, launcher and beat on this machine, prints the page's URL
and a login, and ends all of them with Ctrl-C. It needs the extras of the control plane:
  pip install 'weir-streaming[control-plane,embedded]'

Its data is kept in weir/ of your data directory, which is XDG_DATA_HOME or else ~/.local/share; in
a checkout of Weir in .weir/. --home, or the environment variable WEIR_HOME, names another place.

exit codes:
  0  everything has ended in order
  1  a service could not be started; the message has the end of its log
  2  the arguments are wrong, or the extras are not installed; nothing was started
"""

MANAGE_EPILOG = """\
examples:
  weir manage weir_user mara --role admin
  weir manage weir_token mara --name nightly --role operator
  weir manage weir_audit verify
  weir manage help weir_token

Runs a command of the control plane, as `python manage.py` does in a checkout: with the settings
that DJANGO_SETTINGS_MODULE names, or those of one machine.
"""


def add_up(up: ArgumentParser) -> None:
    """Add the arguments of ``weir up``: those of the control plane's ``weir_up``."""
    up.add_argument(
        "--demo",
        action="store_true",
        help="also run the demonstration job (needs the extra demo)",
    )
    up.add_argument(
        "--port",
        type=int,
        metavar="PORT",
        help="the web service's port; 0 for any free one (default: 8000 if free)",
    )
    up.add_argument("--home", metavar="DIR", help="the directory of all data and logs")
    up.add_argument(
        "--access",
        metavar="FILE",
        help="write the URL and a token for the API to FILE as JSON, once all services are up",
    )
    up.add_argument(
        "--keep-jobs",
        action="store_true",
        help="let running jobs go on after Ctrl-C; the next weir up takes them up again",
    )


def add_manage(manage: ArgumentParser) -> None:
    """Add the arguments of ``weir manage``: a command's name, and all that follows it."""
    manage.add_argument("name", metavar="NAME", help="the command's name; `help` lists them")
    manage.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def run_up(given: Namespace) -> NoReturn:
    """Become ``weir_up`` with the given options.

    Raises:
        ConfigError: The extras of the control plane are not installed.
    """
    options = [f"--{name}" for name in ("demo", "keep-jobs") if vars(given)[name.replace("-", "_")]]
    for name in ("port", "home", "access"):
        if (value := vars(given)[name]) is not None:
            options.append(f"--{name}={value}")
    control_plane.run("weir_up", *options)


def run_manage(given: Namespace) -> NoReturn:
    """Become the named command.

    Raises:
        ConfigError: The extras of the control plane are not installed.
    """
    settings = os.environ.get("DJANGO_SETTINGS_MODULE") or control_plane.SETTINGS
    control_plane.run(given.name, *given.arguments, settings=settings)
