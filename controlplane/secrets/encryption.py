"""Encryption of secrets at rest: Fernet, with the keys of ``WEIR_ENCRYPTION_KEYS``.

The first key writes and all keys read, so keys are replaced in three steps: put the new one first,
run ``weir_reencrypt_secrets``, take the old one out. A secret's name is encrypted with its value:
a row whose ciphertext was put under another name is refused.

Source: Fernet's specification (AES-128-CBC, HMAC-SHA256); ``cryptography.fernet.MultiFernet``.
"""

import json

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from controlplane.base.errors import Refusal

SETTING = "WEIR_ENCRYPTION_KEYS"


class Unreadable(Refusal):
    """A secret cannot be stored or read with this process's keys."""

    code = "secret_unreadable"
    status = 503
    title = "Secrets are not available"


def encrypt(name: str, value: str) -> bytes:
    """The encrypted form of a secret.

    Raises:
        Unreadable: No key is set.
    """
    return _keys(name).encrypt(json.dumps([name, value]).encode())


def decrypt(name: str, encrypted: bytes) -> str:
    """The value of a secret.

    Raises:
        Unreadable: No key reads it, or it was encrypted as another secret.
    """
    return _value(name, _opened(name, encrypted))


def rotate(name: str, encrypted: bytes) -> bytes:
    """The same value, encrypted with the first key.

    Raises:
        Unreadable: As ``decrypt``.
    """
    decrypt(name, encrypted)
    return _keys(name).rotate(encrypted)


def _opened(name: str, encrypted: bytes) -> bytes:
    try:
        return _keys(name).decrypt(encrypted)
    except InvalidToken as error:
        raise Unreadable(
            f"no key of {SETTING} reads the secret {name}; add the key that it was stored with to "
            "the setting, or store the secret again"
        ) from error


def _value(name: str, opened: bytes) -> str:
    stored_name, value = json.loads(opened)
    if stored_name != name:
        raise Unreadable(
            f"the row of the secret {name} holds the value of another one; store it again"
        )
    return str(value)


def _keys(name: str) -> MultiFernet:
    if not settings.WEIR_ENCRYPTION_KEYS:
        raise Unreadable(
            f"the secret {name} needs an encryption key; set {SETTING}, or {SETTING}_FILE, for the "
            "web service, the launcher and the worker of deliveries to the result of: "
            "openssl rand -hex 32"
        )
    return MultiFernet([Fernet(key) for key in settings.WEIR_ENCRYPTION_KEYS])
