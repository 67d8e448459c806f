"""Drivers that mean no good, against a real web process: bombs, slow bodies, many at once."""

import gzip
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import transaction

from controlplane.driver_http import BODY_TIMEOUT_S, TURN_TIMEOUT_S
from controlplane.embedded.redis import Redis
from jobs.models import Job
from tests import factories
from tests.process.controlplane.web import Answer, Web
from tests.waiting import wait_until
from weir.wire import batches

EMPTY = batches.encode_batch(1, ())
UNPACKED_MAX = 8 << 20  # The setting's default.
GROWTH_MAX = 768 << 20  # Of the process, with four batches in hand.

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def web(start_web: Callable[..., Web], redis: Redis) -> Web:
    """A web process with the bounds that it has when nothing else is set."""
    return start_web(redis.url, WEIR_GATEWAY_BODY_BYTES_MAX=str(UNPACKED_MAX))


def drivers(count: int) -> list[str]:
    """Ids of jobs with a driver each, whose token is the job's id."""
    ids = [f"orders-{number}" for number in range(count)]
    for job_id in ids:
        factories.driver(factories.job("orders", id=job_id), token=job_id)
    return ids


def post(web: Web, job_id: str, body: bytes = EMPTY, **headers: str) -> Answer:
    """Post a batch as the job's driver does."""
    return web.request("POST", path(job_id), body, **(headers_of(job_id) | headers))


def path(job_id: str) -> str:
    return f"/gateway/v1/jobs/{job_id}/events"


def headers_of(job_id: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {job_id}", batches.VERSION_HEADER: "2"}


def filled(start: bytes, repeated: bytes, end: bytes) -> bytes:
    """JSON that is as long as may be, and packs to almost nothing."""
    count = (UNPACKED_MAX - len(start) - len(end)) // len(repeated)
    return start + repeated * count + end


_ACK = (
    b'{"first_number":1,"events":[{"type":"Acknowledged","attempt":1,"checkpoint_id":1,"chain":'
    b'{"operator":"a","index":0},"operators":[{"subtask":{"operator":"a","index":0},"metrics":'
)
_STATUS = (
    b'{"first_number":1,"events":[{"type":"SubtaskChanged","attempt":1,"chain":'
    b'{"operator":"a","index":0},"status":"running","details":{"a":['
)
_GATE = b'{"gate_index":0,"upstream":[],"blocked_ms":[],"bytes_during":[],"arrived_ms":[0.5]}'
BOMBS = {
    "nothing but zeros": bytes(64 << 20),
    "brackets": b"[" * UNPACKED_MAX,
    "numbers in one array": filled(
        _ACK + b'{"gates":[{"gate_index":0,"upstream":[],"blocked_ms":[],"bytes_during":[],'
        b'"arrived_ms":[', b"0.5,", b"0.5]}]}}]}]}"
    ),
    "gates": filled(
        _ACK + b'{"gates":[',
        _GATE + b",",
        _GATE + b"]}}]}]}",
    ),
    "lists in details": filled(_STATUS, b"[],", b"0]}}]}"),
    "events": filled(b'{"first_number":1,"events":[', b'{"type":"Tick"},', b'{"type":"Tick"}]}'),
    "escapes": filled(
        b'{"first_number":1,"events":[{"type":"Notice","at_ms":1,"text":"', rb"\u0000", b'"}]}'
    ),
}  # fmt: skip


def peak_bytes(web: Web) -> int:
    """The most memory that the process has held."""
    lines = Path(f"/proc/{web.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def test_bombs_cost_a_bounded_memory_and_others_are_served(web: Web) -> None:
    *attackers, good = drivers(9)
    packed = {name: gzip.compress(bomb) for name, bomb in BOMBS.items()}
    assert max(map(len, packed.values())) < 80 << 10
    assert post(web, good).status == 200
    before = peak_bytes(web)
    waited_s, statuses = [], set()
    with ThreadPoolExecutor(len(attackers)) as threads:
        for name, bomb in packed.items():
            attacks = [
                threads.submit(post, web, job_id, bomb, Content_Encoding="gzip")
                for job_id in attackers
            ]
            began = time.monotonic()
            assert web.request("GET", "/healthz").status == 200, name
            wait_until(lambda: post(web, good).status == 200, "a batch that does no harm counts")
            waited_s.append(time.monotonic() - began)
            statuses |= {(name, attack.result().status) for attack in attacks}
    # Gates that fit are taken, and the coordinator passes their event over.
    answered = {name for name, status in statuses if status in (200, 400, 413)}
    assert answered == set(BOMBS), statuses
    assert {name for name, status in statuses if status == 200} <= {"gates"}, statuses
    assert {status for _, status in statuses} <= {200, 400, 413, 503}, statuses
    grown = peak_bytes(web) - before
    print(f"grown by {grown >> 20} MiB; others waited {max(waited_s):.1f} s at most")
    assert grown < GROWTH_MAX, f"{grown >> 20} MiB"


def test_who_sends_is_known_before_what_is_sent_is_looked_at(web: Web) -> None:
    (job_id,) = drivers(1)
    stranger = {"Authorization": "Bearer unknown"}
    assert post(web, job_id, b"no batch").status == 400
    assert post(web, job_id, b"no batch", **stranger).status == 401
    assert post(web, job_id, b"no batch", Content_Encoding="gzip", **stranger).status == 401
    Job.objects.get().drivers.update(status="lost")
    assert post(web, job_id, b"no batch").status == 409


def test_a_driver_has_one_batch_in_hand_and_not_for_ever(web: Web) -> None:
    slow, other = drivers(2)
    with socket.create_connection(("127.0.0.1", web.port), timeout=240) as connection:
        lines = [f"POST {path(slow)} HTTP/1.1", "Host: weir", "Content-Length: 1000"]
        lines += [f"{name}: {value}" for name, value in headers_of(slow).items()]
        lines += ["Expect: 100-continue"]  # Answered once the gateway begins to read the body.
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 100")
        began = time.monotonic()
        connection.sendall(b"{")
        busy = post(web, slow)
        assert busy.status == 503
        assert (busy.json["code"], busy.headers["retry-after"]) == ("too_busy", "1")
        assert post(web, other).status == 200
        answer = connection.recv(65_536).decode()
        assert answer.startswith("HTTP/1.1 408"), answer
        assert BODY_TIMEOUT_S - 1 < time.monotonic() - began < BODY_TIMEOUT_S + 20
    assert post(web, slow).status == 200


def test_batches_that_take_long_leave_threads_for_others(web: Web) -> None:
    """Eight drivers' batches wait for their jobs' rows, which someone has locked."""
    *held, free = drivers(9)
    with ThreadPoolExecutor(len(held)) as threads:
        with transaction.atomic():
            list(Job.objects.filter(pk__in=held).select_for_update())
            waiting = [threads.submit(post, web, job_id) for job_id in held]
            # The first sample is that of the busy threads.
            wait_until(lambda: web.metric("weir_web_database_threads") >= 4, "four are at work")
            began = time.monotonic()
            assert web.request("GET", "/login/").status == 200
            assert time.monotonic() - began < TURN_TIMEOUT_S
            busy = post(web, free)
            assert (busy.status, busy.json["code"]) == (503, "too_busy")
        statuses = sorted(answer.result().status for answer in waiting)
        assert statuses == [200] * 4 + [503] * 4
    assert post(web, free).status == 200
