"""Notices per second through one worker of deliveries, to receivers on the same machine."""

import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import urllib3

from tests.benchmarks.report import Row
from tests.waiting import wait_until

if TYPE_CHECKING:
    from controlplane.deliveries.models import Endpoint
    from tests.process.deliveries.receiver import Running

PER_SECOND_MIN = 100.0
ENDPOINTS = 4
THREADS = 8  # Of the requests without Weir.


def deliveries(quick: bool) -> list[Row]:
    """Notices per second: outbox, worker, signed request, answer and its log in PostgreSQL."""
    count = 400 if quick else 3_000
    with tempfile.TemporaryDirectory() as directory, _plane():
        from tests.process.deliveries import receiver

        with receiver.running(Path(directory) / "requests") as process:
            endpoints = _endpoints(process)
            _post(endpoints, 100)
            _await_delivered(100)  # Warm: imports, connections, certificates.
            _post(endpoints, count)
            started = time.perf_counter()
            _await_delivered(100 + count)
            rate = count / (time.perf_counter() - started)
            assert len(process.requests()) == 100 + count, "a notice arrived twice or not at all"
            bare = _bare_rate(process, count)
    return [
        Row(
            what="notices of different alerts through one worker of deliveries",
            unit="1/s",
            weir=rate,
            baseline=bare,
            ratio=rate / bare,
            against=f"the same requests alone, over {THREADS} open connections",
            target=f"≥ {PER_SECOND_MIN:,.0f} 1/s",
            met=rate >= PER_SECOND_MIN,
            note=f"{count:,} notices, queued beforehand, to {ENDPOINTS} endpoints",
        )
    ]


@contextmanager
def _plane() -> Iterator[None]:
    """PostgreSQL, Redis, beat and one worker of deliveries; Django here on their rows and keys."""
    from tests.benchmarks.web_stack import web_stack

    with web_stack() as stack:
        from django.conf import settings

        from controlplane.base import env

        settings.WEIR_ENCRYPTION_KEYS = env.keys("WEIR_ENCRYPTION_KEYS")
        stack.start({"deliveries", "beat"}, prepare=None)
        yield


def _endpoints(process: "Running") -> "list[Endpoint]":
    from tests import factories

    return [
        factories.endpoint(process.url(f"/ok/{number}"), allow_internal=True)
        for number in range(ENDPOINTS)
    ]


def _post(endpoints: "list[Endpoint]", count: int) -> None:
    from django.db import transaction

    from controlplane.deliveries.outbox import post
    from tests import factories

    with transaction.atomic():
        for number in range(count):
            post(factories.notice(str(uuid.uuid4())), [endpoints[number % len(endpoints)]])


def _await_delivered(count: int) -> None:
    from controlplane.deliveries.models import Delivery

    delivered = Delivery.objects.filter(status="delivered")
    wait_until(lambda: delivered.count() >= count, f"{count} notices are delivered", 300, 0.1)


def _bare_rate(process: "Running", count: int) -> float:
    """Requests per second of the same size, by nothing but a client."""
    body = process.requests()[0]["body"].encode()
    client = urllib3.PoolManager(maxsize=THREADS, retries=False)

    def request(number: int) -> None:
        url = process.url(f"/ok/bare-{number % ENDPOINTS}")
        answer = client.request("POST", url, body=body)
        assert answer.status == 200

    with ThreadPoolExecutor(THREADS) as pool:
        started = time.perf_counter()
        list(pool.map(request, range(count)))
        return count / (time.perf_counter() - started)
