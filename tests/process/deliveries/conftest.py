"""A receiver process for all tests, and one with TLS by an authority of its own."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controlplane.deliveries.receivers import signing
from tests.process.deliveries import receiver as receivers
from tests.process.deliveries.receiver import Running

NAME = "alerts.example"  # The only name in the certificate.
SECRET, OLDER = signing.new_secret(), signing.new_secret()


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The receiver, which knows the secret and the one before it."""
    log = tmp_path_factory.mktemp("receiver") / "requests"
    with receivers.running(log, (SECRET, OLDER)) as process:
        yield process


@pytest.fixture(scope="module")
def tls_receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """A receiver with TLS, and the authority that has signed its certificate."""
    directory = tmp_path_factory.mktemp("tls")
    authority = _certificate(directory / "server.pem")
    with receivers.running(directory / "requests", (SECRET,), directory / "server.pem") as process:
        yield process, authority


def _certificate(path: Path) -> str:
    """Write a certificate, its own authority, for ``NAME`` with its key; return it without."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    path.write_bytes(
        pem
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pem.decode()
