"""The credentials of slots and worker processes, put to use.

This module needs no library beyond Python's own, so that supervisors stay small; the driver's side,
which makes the credentials, is ``authority``.
"""

from weir.channels.auth import SharedSecret, attempt_secret
from weir.channels.identity import SlotIdentity
from weir.channels.session import Security
from weir.channels.tls import TlsCredentials
from weir.ids import AttemptNumber
from weir.protocol.deployment import Credentials


def open_credentials(credentials: Credentials) -> Security:
    """The maker of this end's sessions.

    Raises:
        ConfigError: The certificate is unusable.
    """
    if credentials.is_encrypted:
        return TlsCredentials(credentials)
    return SharedSecret(credentials.identity, credentials.secret)


def derive_worker_credentials(
    slot: Credentials, attempt: AttemptNumber, slot_index: int
) -> Credentials:
    """The credentials of an attempt's worker process on a plain network, from those of its slot."""
    return Credentials(
        slot.job_id,
        str(SlotIdentity(slot_index, attempt)),
        secret=attempt_secret(slot.secret, attempt),
    )
