"""Certificates of a private authority, for servers of tests."""

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Authority:
    """A private authority, with the certificate of a server at 127.0.0.1."""

    certificate: str
    server: bytes  # Key and certificate.

    def server_context(self, directory: Path) -> ssl.SSLContext:
        """The context of that server, whose key has to be read from a file."""
        file = directory / "server.pem"
        file.write_bytes(self.server)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def make_authority() -> Authority:
    """A new authority, whose certificates are valid for a day."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(
        subject: str, public: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> bytes:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("authority"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(extension, critical=False)
            .sign(key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    server = ec.generate_private_key(ec.SECP256R1())
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return Authority(
        signed(
            "authority", key.public_key(), x509.BasicConstraints(ca=True, path_length=None)
        ).decode(),
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed("server", server.public_key(), x509.SubjectAlternativeName([address])),
    )
