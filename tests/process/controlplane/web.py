"""The real web process on a free port, and a client that speaks plain HTTP to it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import TIMEOUT_S, wait_until


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of a request."""

    status: int
    headers: dict[str, str]  # Names in small letters.
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class Web:
    """One uvicorn process. What it logs is in ``log``."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @classmethod
    def at(cls, port: int) -> Self:
        """A process that was started elsewhere."""
        web = cls(Path(os.devnull), {})
        web.port = port
        return web

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "controlplane.serve"),
                    *("--port", str(self.port)),
                ],
                env=os.environ
                | {"DJANGO_SETTINGS_MODULE": "controlplane.settings.test"}
                | self._environment,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, f"the web process answers; its log: {self.log}")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def terminate(self) -> float:
        """Ask the process to end; how many seconds that took."""
        assert self._process is not None
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT_S)
        return time.monotonic() - started

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        **headers: str,
    ) -> Answer:
        """One request on a connection of its own; an iterator is sent in chunks."""
        with self.open(method, path, body, **headers) as response:
            return Answer(
                response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
            )

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        **headers: str,
    ) -> Iterator[HTTPResponse]:
        """The same, to be read as it comes."""
        connection = self.connect()
        try:
            connection.request(method, path, body, Web.names(headers))
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def connect(self) -> HTTPConnection:
        """A connection that the caller closes."""
        return HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    @staticmethod
    def names(headers: dict[str, str]) -> dict[str, str]:
        """Headers as HTTP spells them."""
        return {name.replace("_", "-"): value for name, value in headers.items()}

    def metric(self, name: str, **labels: str) -> float:
        """The first sample of a metric with these labels, of a process with public metrics."""
        answer = self.request("GET", "/metrics")
        assert answer.status == 200, answer
        for family in text_string_to_metric_families(answer.body.decode()):
            for sample in family.samples:
                if family.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise AssertionError(f"there is no {name} {labels}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            return self.request("GET", "/healthz").status == 200
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    identity: str
    kind: str
    data: Any


def events(stream: HTTPResponse) -> Iterator[Event]:
    """The events of a stream until it ends; comments and what is no event are left out."""
    fields: dict[str, str] = {}
    while line := stream.readline():
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield Event(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
        fields = {}
