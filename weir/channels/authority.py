"""The keys of a job's network, which only its driver holds: they make the credentials of all ends.

An encrypted network has a certificate authority of its own. Its key is made with the job's driver,
is never written or sent, and ends with it: the next driver has another authority, whose slots trust
no certificate of this one. A slot gets its certificate with its Spark task, which Spark may start
anew at any later time; it is therefore good for as long as the authority. A worker process gets one
for its attempt, over its slot's connection; it connects once, at the attempt's beginning, so its
certificate is short-lived. Clocks of machines differ, hence the leeway.

A plain network has a secret instead (``weir.channels.auth``), which every slot knows.
"""

import datetime as dt
import ipaddress
import secrets
import socket
from enum import StrEnum
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from weir.channels.auth import SharedSecret
from weir.channels.identity import JOB_MASTER, SlotIdentity
from weir.channels.session import Security
from weir.channels.tls import TlsCredentials, identity_uri
from weir.config import NetworkSecurity
from weir.errors import ConfigError
from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import Credentials

LEEWAY = dt.timedelta(days=1)
WORKER_LIFETIME = dt.timedelta(days=1)
AUTHORITY_LIFETIME = dt.timedelta(days=3650)

_PEM, _PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
_CLIENT, _SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


class Protection(StrEnum):
    """The protection that a job's connections have."""

    ENCRYPTED = "encrypted"  # TLS 1.3, a certificate at both ends.
    LOCAL = "local"  # A proved secret; nothing leaves the driver's machine.
    PLAIN = "plain"  # A proved secret; data can be read and changed on the network.


class Network(Protocol):
    """The maker of credentials of one job, in its driver."""

    @property
    def protection(self) -> Protection:
        """The protection that the job's connections have."""

    def job_master(self) -> Security:
        """The credentials of the job master itself."""

    def slot(self, slot_index: int) -> Credentials:
        """The credentials that a slot gets with its Spark task."""

    def worker(self, attempt: AttemptNumber, slot_index: int) -> Credentials | None:
        """The credentials of an attempt's worker process; None: its slot derives them."""


def open_network(job_id: JobId, security: NetworkSecurity, host: str) -> Network:
    """The network of a job whose driver listens at ``host``.

    Slots reach the driver there and each other at the address from which they do; a driver on a
    loopback address can have none on another machine.

    Raises:
        ConfigError: The host has no address.
    """
    is_local = _is_loopback(host)
    if security is NetworkSecurity.TLS or (security is NetworkSecurity.AUTO and not is_local):
        return EncryptedNetwork(job_id)
    return PlainNetwork(job_id, Protection.LOCAL if is_local else Protection.PLAIN)


class EncryptedNetwork:
    """A network on which every connection is encrypted, and both ends show a certificate."""

    protection = Protection.ENCRYPTED

    def __init__(self, job_id: JobId) -> None:
        """Make the job's certificate authority."""
        self._job_id = job_id
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Weir job")])
        public = self._key.public_key()
        self._end = dt.datetime.now(dt.UTC) + AUTHORITY_LIFETIME
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        certificate = (
            self._builder(self._name, public, self._end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._certificate = certificate.public_bytes(_PEM)

    def job_master(self) -> TlsCredentials:
        """The credentials of the job master itself."""
        return TlsCredentials(self.issue(JOB_MASTER, self._end, [_SERVER]))

    def slot(self, slot_index: int) -> Credentials:
        """The credentials that a slot gets with its Spark task."""
        return self.issue(str(SlotIdentity(slot_index)), self._end, [_CLIENT])

    def worker(self, attempt: AttemptNumber, slot_index: int) -> Credentials:
        """The credentials of an attempt's worker process, which connects and is connected to."""
        end = dt.datetime.now(dt.UTC) + WORKER_LIFETIME
        return self.issue(str(SlotIdentity(slot_index, attempt)), end, [_CLIENT, _SERVER])

    def issue(
        self, identity: str, not_after: dt.datetime, usages: list[x509.ObjectIdentifier]
    ) -> Credentials:
        """A new key with a certificate that names its holder."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity)])
        uri = x509.UniformResourceIdentifier(identity_uri(self._job_id, identity))
        certificate = (
            self._builder(name, key.public_key(), not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Credentials(
            self._job_id,
            identity,
            certificate=certificate.public_bytes(_PEM),
            key=key.private_bytes(_PEM, _PKCS8, serialization.NoEncryption()),
            authority=self._certificate,
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, not_after: dt.datetime
    ) -> x509.CertificateBuilder:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(dt.datetime.now(dt.UTC), not_after) - LEEWAY)
            .not_valid_after(not_after)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer, critical=False)
        )


class PlainNetwork:
    """A network on which both ends prove a secret, and nothing is encrypted."""

    def __init__(self, job_id: JobId, protection: Protection = Protection.LOCAL) -> None:
        """Make the job's secret."""
        self.protection = protection
        self._job_id = job_id
        self._secret = secrets.token_bytes(32)

    def job_master(self) -> SharedSecret:
        """The credentials of the job master itself."""
        return SharedSecret(JOB_MASTER, self._secret, derives=True)

    def slot(self, slot_index: int) -> Credentials:
        """The credentials that a slot gets with its Spark task."""
        return Credentials(self._job_id, str(SlotIdentity(slot_index)), secret=self._secret)

    def worker(self, attempt: AttemptNumber, slot_index: int) -> None:
        """None: no secret is sent, the slot derives that of the attempt."""


def _is_loopback(host: str) -> bool:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"the driver's host {host!r} has no address: {error}; set spark.driver.host"
        ) from error
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in entries)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
