"""One POST against a receiver that misbehaves: bounded in time and size, to a checked address."""

import socket
import time
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from controlplane.deliveries.machine import Meaning
from controlplane.deliveries.receivers.base import HttpRequest
from controlplane.deliveries.sending import addresses, http
from controlplane.deliveries.sending.outcome import Outcome
from tests.process.deliveries.conftest import NAME
from tests.process.deliveries.receiver import BIG_BYTES, Running

TIMEOUT_S = 1.5


def posted(url: str, timeout_s: float = 30.0, *, allow_internal: bool = True) -> Outcome:
    request = HttpRequest(url=url, body=b"{}", headers={"Content-Type": "application/json"})
    return http.post(request, allow_internal=allow_internal, timeout_s=timeout_s)


def test_an_answer_and_the_request_that_it_answers(receiver: Running) -> None:
    outcome = posted(receiver.url("/ok"))
    assert (outcome.meaning, outcome.status_code, outcome.body) == (Meaning.DELIVERED, 200, "ok")
    assert (outcome.address, outcome.error) == ("127.0.0.1", "")
    assert "date" in outcome.headers
    request = receiver.requests("/ok")[-1]
    assert request["body"] == "{}"
    assert request["headers"]["Host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize(
    ("path", "status", "meaning", "said"),
    [
        ("/500", 500, Meaning.FAILED, "the endpoint answered 500"),
        ("/gone", 410, Meaning.GONE, "the endpoint answered 410"),
        ("/redirect", 302, Meaning.FAILED, "redirects are not followed"),
        ("/reset", None, Meaning.FAILED, "the connection failed"),
        ("/garbage", None, Meaning.FAILED, "the answer is not HTTP"),
    ],
)
def test_each_failure_is_an_outcome(
    receiver: Running, path: str, status: int | None, meaning: Meaning, said: str
) -> None:
    outcome = posted(receiver.url(path))
    assert (outcome.status_code, outcome.meaning) == (status, meaning)
    assert said in outcome.error


def test_a_redirect_is_not_followed(receiver: Running) -> None:
    posted(receiver.url("/redirect"))
    posted(receiver.url("/ok"))
    assert receiver.requests("/redirect")
    assert not receiver.requests("/stolen")


@pytest.mark.parametrize("path", ["/slow", "/drip"])
def test_the_deadline_is_one_for_all_that_comes_slowly(receiver: Running, path: str) -> None:
    """Each read of a dripping header takes a tenth of a second: no time-out of a read ends it."""
    started = time.monotonic()
    outcome = posted(receiver.url(path), TIMEOUT_S)
    assert time.monotonic() - started < TIMEOUT_S + 20
    assert outcome.error == "no answer within 1.5 s"
    assert outcome.meaning is Meaning.FAILED
    assert receiver.requests(path)


def test_of_ten_megabytes_a_part_is_read(receiver: Running) -> None:
    outcome = posted(receiver.url("/big"))
    assert outcome.meaning is Meaning.DELIVERED
    assert outcome.headers["content-length"] == str(BIG_BYTES)
    assert len(outcome.body) == http.BODY_KEPT_MAX
    assert [one["answer"] for one in receiver.await_requests(2, "/big")] == ["big", "cut off"]


def test_a_busy_endpoint_says_when_to_come_back(receiver: Running) -> None:
    outcome = posted(receiver.url("/busy/once"))
    assert (outcome.status_code, outcome.retry_after) == (429, "2")


def test_nothing_that_listens_is_an_outcome() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # It does not listen.
        outcome = posted(f"http://127.0.0.1:{free.getsockname()[1]}/")
    assert outcome.error.startswith("the connection failed")


def test_a_connection_that_is_not_taken_ends_with_the_deadline() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:  # They fill its queue.
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        started = time.monotonic()
        outcome = posted(f"http://127.0.0.1:{port}/", TIMEOUT_S)
        assert time.monotonic() - started < TIMEOUT_S + 20
        for one in waiting:
            one.close()
    assert outcome.meaning is Meaning.FAILED
    assert "in time" in outcome.error or "no answer" in outcome.error


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Let a name resolve to other addresses each time; the names that were asked for."""
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return [answers[min(len(asked), len(answers)) - 1]]

    monkeypatch.setattr(addresses, "resolve", resolve)
    return asked


def test_an_address_that_became_internal_is_refused_when_connecting(
    receiver: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name had a public address when the endpoint was saved (DNS rebinding)."""
    asked = resolving(monkeypatch, "8.8.8.8", "127.0.0.1")
    place = addresses.parsed(f"https://{NAME}:{receiver.port}/ok", allow_internal=False)
    assert addresses.checked(place, allow_internal=False) == ["8.8.8.8"]
    before = len(receiver.requests())
    outcome = posted(f"https://{NAME}:{receiver.port}/ok", allow_internal=False)
    assert asked == [NAME, NAME]
    assert f"{NAME} has the address 127.0.0.1, which is internal" in outcome.error
    assert len(receiver.requests()) == before


def test_the_connection_goes_to_the_address_that_was_checked(
    receiver: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look at the name, by the library that connects, could give another address."""
    resolving(monkeypatch, "127.0.0.1", "8.8.8.8")
    real: Any = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **more: Any) -> Any:
        assert host == "127.0.0.1", f"{host} was looked up again"
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert posted(receiver.url("/ok", NAME)).meaning is Meaning.DELIVERED
    assert receiver.requests("/ok")[-1]["headers"]["Host"] == f"{NAME}:{receiver.port}"


def test_tls_asks_for_the_name_and_checks_it(
    tls_receiver: tuple[Running, str], monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    server, authority = tls_receiver
    resolving(monkeypatch, "127.0.0.1")
    unknown = posted(server.url("/ok", NAME))
    assert "certificate verify failed" in unknown.error
    settings.WEIR_ENDPOINTS_CA = authority
    assert posted(server.url("/ok", NAME)).meaning is Meaning.DELIVERED
    request = server.requests("/ok")[-1]
    assert request["server_name"] == NAME
    assert request["headers"]["Host"] == f"{NAME}:{server.port}"
    other = posted(server.url("/ok", "other.example"))
    assert "Hostname mismatch" in other.error
    assert len(server.requests("/ok")) == 1


def test_tls_and_plain_text_do_not_understand_each_other(
    receiver: Running, tls_receiver: tuple[Running, str]
) -> None:
    server, _ = tls_receiver
    assert posted(f"https://127.0.0.1:{receiver.port}/ok").meaning is Meaning.FAILED
    assert posted(f"http://127.0.0.1:{server.port}/ok").meaning is Meaning.FAILED


def test_environment_variables_for_proxies_change_nothing(
    receiver: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert posted(receiver.url("/ok")).meaning is Meaning.DELIVERED
