"""A control plane on this machine for as long as a ``with`` block, and a client of its REST API.

``LocalControlPlane`` starts ``weir_up`` as a user would, in a process of its own; ``Client`` speaks
to its API with a token. Both use only the interfaces that any user of the control plane has.
"""

import json
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from weir.child_process import popen
from weir.tools import control_plane

START_S = 120.0
STOP_S = 60.0
TIMEOUT = urllib3.Timeout(connect=5.0, read=30.0)


class RequestRefusedError(Exception):
    """The API answered with an error; ``problem`` is its problem document (RFC 9457)."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status}: {problem.get('detail') or problem.get('title') or problem}")
        self.status = status
        self.problem = problem


class Client:
    """A user of the REST API.

    Raises:
        RequestRefusedError: From every method: the API answered with an error.
        urllib3.exceptions.HTTPError: From every method: the API did not answer.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._pool = urllib3.PoolManager(
            headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT, retries=False
        )

    def get(self, path: str, **query: Any) -> Any:
        """The document at a path below ``/api/v1/``."""
        return self._answer(self._pool.request("GET", self._address(path), fields=query or None))

    def post(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
        """Post ``body`` to a path below ``/api/v1/``; under the same ``key`` twice counts once."""
        headers = dict(self._pool.headers) | {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        data = json.dumps(body or {}).encode()
        return self._answer(
            self._pool.request("POST", self._address(path), body=data, headers=headers)
        )

    def put(self, path: str, body: dict[str, Any]) -> Any:
        """Put ``body`` to a path below ``/api/v1/``, which creates or replaces what is there."""
        headers = dict(self._pool.headers) | {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        return self._answer(
            self._pool.request("PUT", self._address(path), body=data, headers=headers)
        )

    def delete(self, path: str) -> None:
        """Delete what is at a path below ``/api/v1/``."""
        self._answer(self._pool.request("DELETE", self._address(path)))

    def _address(self, path: str) -> str:
        return f"{self.url}/api/v1/{path}"

    @staticmethod
    def _answer(response: urllib3.BaseHTTPResponse) -> Any:
        document = json.loads(response.data) if response.data else None
        if response.status >= 400:
            raise RequestRefusedError(response.status, document or {})
        return document


class LocalControlPlane:
    """``weir_up`` on a free port, its data in ``home``; leaving the block ends every process."""

    user = "operator"

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client of the API, as the operator. Only within the block."""
        assert self._client is not None
        return self._client

    @property
    def password(self) -> str:
        """The operator's password. Only within the block."""
        return (self._home / "operator").read_text().strip()

    def __enter__(self) -> Self:
        """Start the control plane and wait until its pages answer.

        Raises:
            ConfigError: The extras of the control plane are not installed.
            RuntimeError: It ended or did not come up; the message has the end of its output.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        log, access = self._home / "weir_up.log", self._home / "access.json"
        access.unlink(missing_ok=True)
        command = control_plane.command(
            "weir_up", f"--home={self._home}", "--port=0", f"--access={access}"
        )
        try:
            with log.open("wb") as output:
                self._process = popen(command, stdout=output.fileno(), stderr=output.fileno())
            self._await(access, log)
        except BaseException:  # Ctrl-C too: nothing else ends what has begun.
            self._stop()
            raise
        credentials = json.loads(access.read_text())
        self._client = Client(credentials["url"], credentials["token"])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _await(self, access: Path, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not access.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-4000:]
                raise RuntimeError(f"the control plane did not come up:\n{tail}")
            time.sleep(0.1)

    def _stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
