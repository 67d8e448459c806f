"""Attackers at the port of a worker process: wrong and missing certificates, forged frames.

Each is a socket of its own that speaks TLS with OpenSSL's usual settings, or no TLS at all, and
sends a frame that a worker process of the attempt could have sent.
"""

import datetime as dt
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.networks import JOB_ID, KINDS, make_network, worker_credentials
from tests.process.channels.test_tcp import DEADLINE_S, FORTH, End, end
from tests.waiting import wait_until
from weir.channels import tcp
from weir.channels.authority import EncryptedNetwork, Network
from weir.channels.framing import ElementEncoder, FrameEncoder
from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import Address, Credentials
from weir.protocol.elements import Watermark

ATTEMPT = 2
FRAME_BYTES_MAX = 1 << 20


@pytest.fixture
def network() -> Network:
    return make_network("encrypted")


@pytest.fixture
def victim(network: Network) -> Iterator[End]:
    """Slot 1, which slot 0 is to connect to."""
    with end(network, 1, attempt=ATTEMPT) as victim:
        yield victim


def forged_frame() -> bytes:
    encoder = ElementEncoder(FORTH.id, FrameEncoder(AttemptNumber(ATTEMPT), FRAME_BYTES_MAX))
    return b"".join(bytes(part) for part in encoder.encode(Watermark(666)))


def connect(to: Address) -> socket.socket:
    return socket.create_connection((to.host, to.port), DEADLINE_S)


def client_context(credentials: Credentials | None, directory: Path) -> ssl.SSLContext:
    """A client's settings that trust any peer, since an attacker does not mind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if credentials is not None:
        file = directory / "stolen.pem"
        file.write_bytes(credentials.key + credentials.certificate)
        context.load_cert_chain(file)
    return context


def speak(victim: End, context: ssl.SSLContext) -> str:
    """Send a forged frame over TLS; the error by which the victim ended the connection."""
    with connect(victim.transport.address) as raw:
        try:
            with context.wrap_socket(raw) as tls:
                assert tls.version() == "TLSv1.3"
                tls.sendall(forged_frame())
                answer = tls.recv(1 << 16)
                return "closed" if not answer else f"answered {answer!r}"
        except (ssl.SSLError, ConnectionError) as error:
            return str(error)


def expired(network: EncryptedNetwork) -> Credentials:
    end = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    return network.issue(f"attempt-{ATTEMPT}/slot-0", end, both)


def of_another_job(network: EncryptedNetwork) -> Credentials:
    network._job_id = JobId("job-2")  # Signed by this job's own authority all the same.
    try:
        return worker_credentials(network, ATTEMPT, 0)
    finally:
        network._job_id = JOB_ID


def for_a_server_only(network: EncryptedNetwork) -> Credentials:
    end = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    return network.issue(f"attempt-{ATTEMPT}/slot-0", end, [ExtendedKeyUsageOID.SERVER_AUTH])


@pytest.mark.parametrize(
    ("credentials", "cause"),
    [
        (lambda own: None, "shows no certificate of this job"),
        (lambda own: worker_credentials(EncryptedNetwork(JOB_ID), ATTEMPT, 0), "is refused"),
        (expired, "certificate has expired"),
        (of_another_job, "is one of job job-2"),
        (for_a_server_only, "is refused: unsuit"),
        (lambda own: worker_credentials(own, ATTEMPT - 1, 0), "attempt-1/slot-0' is no peer"),
        (lambda own: worker_credentials(own, ATTEMPT, 7), "attempt-2/slot-7' is no peer"),
        (lambda own: own.slot(0), "'slot-0' is no peer"),
    ],
    ids=[
        "none", "another authority", "expired", "another job", "purpose", "older attempt",
        "another slot", "a slot's own",
    ],
)  # fmt: skip
def test_a_peer_with_the_wrong_certificate_is_refused(
    network: EncryptedNetwork,
    victim: End,
    credentials: Callable[[EncryptedNetwork], Credentials | None],
    cause: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = speak(victim, client_context(credentials(network), tmp_path))
    assert "answered" not in said
    wait_until(lambda: "refused a connection" in caplog.text, "it is refused")
    assert cause in caplog.text
    assert victim.hears_nothing()


def test_the_right_certificate_gets_in(
    network: Network, victim: End, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The occasion of the others: the forged frame would be delivered."""
    context = client_context(worker_credentials(network, ATTEMPT, 0), tmp_path)
    with connect(victim.transport.address) as raw, context.wrap_socket(raw) as tls:
        tls.sendall(forged_frame())
        assert victim.next() == ("element", FORTH.id, Watermark(666))
    assert victim.next()[:2] == ("broken", "slot 0")


def test_an_older_version_of_tls_is_refused(
    network: Network, victim: End, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = client_context(worker_credentials(network, ATTEMPT, 0), tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(victim.transport.address) as raw, pytest.raises(ssl.SSLError, match="version"):
        context.wrap_socket(raw)
    wait_until(lambda: "does not speak TLS 1.3" in caplog.text, "it is refused")
    assert victim.hears_nothing()


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_a_frame_without_a_handshake_is_refused(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with end(make_network(kind), 1, attempt=ATTEMPT) as victim:
        with connect(victim.transport.address) as raw:
            raw.sendall(forged_frame())
            raw.settimeout(DEADLINE_S)
            while raw.recv(4096):
                pass
        wait_until(lambda: "refused a connection" in caplog.text, "it is refused")
        assert victim.hears_nothing()


class Between:
    """A machine between two slots, through which their connection goes."""

    def __init__(self, left: End, right: End) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            left.transport.connect([left.transport.address, Address("127.0.0.1", port)])
            self.near, _ = listener.accept()
        self.far = connect(right.transport.address)
        self.near.settimeout(0.05)
        self.far.settimeout(0.05)
        self.passed = bytearray()

    def relay_until(self, condition: Callable[[], object]) -> None:
        """Pass on everything, both ways, until the condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"relayed {len(self.passed)} bytes"
            for source, target in ((self.near, self.far), (self.far, self.near)):
                try:
                    data = source.recv(1 << 16)
                except TimeoutError:
                    continue
                self.passed += data
                target.sendall(data)

    def close(self) -> None:
        self.near.close()
        self.far.close()


@contextmanager
def intercepted(network: Network) -> Iterator[tuple[End, End, Between]]:
    with (
        end(network, 0, attempt=ATTEMPT) as left,
        end(network, 1, attempt=ATTEMPT) as right,
        closing(Between(left, right)) as between,
    ):
        left.transport.send(FORTH.id, Watermark(1))
        between.relay_until(lambda: not right.heard.empty())
        assert right.next() == ("element", FORTH.id, Watermark(1))
        yield left, right, between


def test_bytes_changed_on_the_way_end_the_connection(network: Network) -> None:
    """One bit of one record is flipped; a forger would mend the frame's checksum as well."""
    with intercepted(network) as (left, right, between):
        left.transport.send(FORTH.id, Watermark(2))
        between.near.settimeout(DEADLINE_S)
        record = bytearray(between.near.recv(1 << 16))
        record[len(record) // 2] ^= 1
        between.far.sendall(record)
        kind, peer, cause = right.next()
        assert (kind, peer) == ("broken", "slot 0")
        assert "bad record mac" in cause


def test_frames_can_be_read_on_a_plain_network_alone() -> None:
    """Neither sends a secret; a plain one shows all else, hence only with the user's consent."""
    for kind in KINDS:
        network = make_network(kind)
        with intercepted(network) as (_, _, between):
            passed = bytes(between.passed)
        readable = [text in passed for text in (b"WR\x03", b"attempt-2/slot-0")]
        assert readable == [kind == "plain"] * 2
        credentials = worker_credentials(network, ATTEMPT, 0)
        for secret in filter(None, (credentials.secret, network.slot(0).secret, credentials.key)):
            assert secret not in passed


def test_connections_without_a_handshake_are_bounded_and_end(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "AUTHENTICATION_TIMEOUT_S", 0.2)
    monkeypatch.setattr(tcp, "STRANGERS_MAX", 3)
    with end(network, 1, attempt=ATTEMPT) as victim, ExitStack() as stack:
        silent = [stack.enter_context(connect(victim.transport.address)) for _ in range(8)]
        for each in silent:
            each.settimeout(DEADLINE_S)
            assert each.recv(1) == b""
