"""The command ``manage.py weir_up``: the whole control plane on this machine."""

import json
import signal
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.urls import reverse
from rich.console import Console
from rich.markup import escape

from controlplane.base.hardening import make_undumpable
from controlplane.embedded.server import is_free
from controlplane.embedded.stack import Stack
from controlplane.management.commands.weir_prepare import ADMIN, OPERATOR
from weir.child_process import END_SIGNALS
from weir.errors import ExternalError

PREFERRED_PORT = 8000
NAMED_MAX = 10  # Jobs of an earlier run that are named.


class Command(BaseCommand):
    """Start all services, print the URL and a login, and end all services on Ctrl-C."""

    help = (
        "Start PostgreSQL, Redis, web, Celery workers, launcher and beat on this machine and print "
        "the URL and a login. Ctrl-C ends all of them."
    )
    requires_system_checks = ()  # Each service checks itself when it starts.

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument(
            "--demo",
            action="store_true",
            help="also run the demonstration job, which replays a year of flights for ever",
        )
        parser.add_argument(
            "--port",
            type=int,
            help=f"the web service's port; 0 for any free one (default: {PREFERRED_PORT} if free)",
        )
        parser.add_argument(
            "--home",
            type=Path,
            default=settings.WEIR_HOME,
            help="the directory of all data and logs (default: %(default)s)",
        )
        parser.add_argument(
            "--access",
            type=Path,
            metavar="FILE",
            help="write the URL and a token for the API to FILE as JSON, once all services are up",
        )
        parser.add_argument(
            "--keep-jobs",
            action="store_true",
            help="let running jobs go on after Ctrl-C; the next weir_up finds them again",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP."""
        make_undumpable()  # It has the passwords of all servers.
        console = Console(highlight=False, soft_wrap=True)
        home = options["home"].resolve()
        stack = Stack(
            home,
            port=_port(options["port"]),
            say=lambda line: console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {escape(line)}"),
        )
        for number in END_SIGNALS:
            signal.signal(number, _end)
        try:
            began = time.monotonic()
            console.print(f"Starting Weir in {escape(str(home))}: three steps, 10 to 20 s.")
            passwords = {name: home / name for name in (OPERATOR, ADMIN)}
            accounts = [word for name, path in passwords.items() for word in (f"--{name}", path)]
            demo = ["--demo"] if options["demo"] else []
            printed = stack.start(prepare=("weir_prepare", *map(str, accounts), *demo))
            prepared = json.loads(printed)
            job_id = prepared["job"]
            logins = {n: f"{n} / {path.read_text().strip()}" for n, path in passwords.items()}
            rows = {
                "page": stack.url,
                "login": logins[OPERATOR],
                "admin": logins[ADMIN],
                "API": f"{stack.url}/api/v1/",
                "docs": f"{stack.url}/api/v1/docs",
                "token": f"{prepared['token']}  (role operator, for a day)",
                "logs": str(home / "logs"),
            }
            if job_id:
                rows |= {"job": stack.url + reverse("job-page", args=[job_id])}
            if options["access"]:
                stack.run_once(
                    *("weir_token", OPERATOR, "--name", "weir_up", "--role", "operator"),
                    *("--days", "1", "--file", str(options["access"].resolve())),
                )
            console.print(f"Weir is up after {time.monotonic() - began:.1f} s.\n")
            for name, value in rows.items():
                console.print(f"  [bold]{name:<7}[/]{escape(value)}")
            jobs = "but running jobs" if options["keep_jobs"] else "running jobs included"
            if going_on := prepared["going_on"]:
                console.print(f"\n{_going_on(going_on)}")
            elif job_id:
                console.print("\nThe demonstration job starts now and runs in about 15 s.")
            console.print(f"\nCtrl-C ends everything, {jobs}.")
            while True:
                signal.pause()
        except KeyboardInterrupt:
            console.print("Stopping all services in order, about 5 s.")
        except ExternalError as error:
            raise CommandError(str(error)) from error
        finally:
            for number in END_SIGNALS:  # A second Ctrl-C must not interrupt the orderly end.
                signal.signal(number, signal.SIG_IGN)
            stack.stop(keep_jobs=options["keep_jobs"])
        console.print("Everything has ended.")


def _going_on(jobs: Sequence[str]) -> str:
    """The jobs of an earlier run that go on from their newest checkpoints, in a sentence."""
    named = ", ".join(jobs[:NAMED_MAX])
    more = f" and {len(jobs) - NAMED_MAX} more" if len(jobs) > NAMED_MAX else ""
    return f"Jobs of an earlier run go on, in about 15 s: {escape(named)}{more}."


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _port(asked: int | None) -> int:
    """The given port; else the preferred one, or 0, for any free one, if that is taken."""
    if asked is not None:
        return asked
    return PREFERRED_PORT if is_free(PREFERRED_PORT) else 0
