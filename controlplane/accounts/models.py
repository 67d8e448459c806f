"""Users with a role, tokens that act for them, and sessions of their logins.

Roles are ordered: an operator may do all that a viewer may, an admin all that an operator may.
"""

import hashlib
import secrets
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractUser
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models
from django.utils.module_loading import import_string

TOKEN_PREFIX = "weir_"


class Role(models.TextChoices):
    """The role of an account or a token; each includes the rights of those above it."""

    VIEWER = "viewer"  # Reads.
    OPERATOR = "operator"  # Submits, cancels, checkpoints: an uploaded pipeline runs as code.
    ADMIN = "admin"  # Manages accounts and tokens of others, reads the audit log.

    @property
    def rank(self) -> int:
        """The place in the order of roles; a higher rank may do more."""
        return list(Role).index(self)


class User(AbstractUser):
    """An account with a role."""

    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)

    class Meta(AbstractUser.Meta):  # type: ignore[name-defined, misc]  # Not in the stubs.
        constraints = [
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="user_role"),
        ]

    @property
    def effective_role(self) -> Role:
        """The user's role; a superuser is an admin."""
        return Role.ADMIN if self.is_superuser else Role(self.role)


class Token(models.Model):
    """A token by which a program acts for a user, at most in ``role``. Only its digest is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)
    digest = models.CharField(max_length=64, unique=True, editable=False)  # SHA-256, hex.
    hint = models.CharField(
        max_length=12, editable=False
    )  # The first characters, to tell tokens apart.
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="token_role"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"

    @property
    def effective_role(self) -> Role:
        """The token's role, or its user's where that is lower."""
        return min(Role(self.role), self.user.effective_role, key=lambda one: one.rank)

    def is_valid(self, now: datetime) -> bool:
        """Whether the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Session(AbstractBaseSession):
    """The session of a login; ``controlplane.accounts.sessions`` writes it."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sessions", null=True)
    browser = models.CharField(max_length=200)  # The header User-Agent of the login.
    began_at = models.DateTimeField()
    used_at = models.DateTimeField()  # To the minute.

    @classmethod
    def get_session_store_class(cls) -> type[Any]:
        """The engine of these sessions."""
        engine: type[Any] = import_string("controlplane.accounts.sessions.SessionStore")
        return engine


def digest_of(secret: str) -> str:
    """The stored digest of a secret, which is random and too long to be guessed back."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    """A new secret, which its owner sees once."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)
