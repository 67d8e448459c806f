"""A web process over the test's database and Redis; ``browser`` looks at it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from django.core.management import call_command
from django.test import override_settings

from tests.migrated import begin_with_static_files
from tests.waiting import wait_until

START_TIMEOUT_S = 240.0


class WebProcess:
    """The web server; can be stopped and started again on the same port."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self._log = home / "web.log"
        self._environment = environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "controlplane.serve", "--port", str(self._port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(
            self._answers,
            lambda: f"the web process answers\n{self.log()[-4_000:]}",
            START_TIMEOUT_S,
        )

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        connection = HTTPConnection("127.0.0.1", self._port, timeout=2)
        try:
            connection.request("GET", "/login/")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """End it as a service manager would."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=120)
            self._process = None

    def log(self) -> str:
        """The process's log."""
        return self._log.read_text()


@contextmanager
def web_process(home: Path, database_url: str, redis_url: str) -> Iterator[WebProcess]:
    """A web process with static files, over the given servers."""
    begin_with_static_files(home)
    with override_settings(STATIC_ROOT=home / "static"):
        call_command("collectstatic", verbosity=0, interactive=False)
    process = WebProcess(
        home,
        os.environ
        | {
            "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "WEIR_HOME": str(home),
            "WEIR_TICK_AGE_MAX_S": "86400",  # Noted once for each test.
        },
    )
    try:
        process.start()
        yield process
    finally:
        process.stop()
