"""Users with a role, and tokens that act for them.

Roles are ordered: who may do something as a viewer may do it as an operator and as an admin.
"""

import hashlib
import secrets
from datetime import datetime

from django.contrib.auth.models import AbstractUser
from django.db import models

TOKEN_PREFIX = "weir_"


class Role(models.TextChoices):
    """What somebody may do; each role may do what those above it may."""

    VIEWER = "viewer"  # Look.
    OPERATOR = "operator"  # Submit, cancel, checkpoint: an uploaded pipeline runs as code.
    ADMIN = "admin"  # Accounts, tokens of others, audit.

    @property
    def rank(self) -> int:
        """Higher may do more."""
        return list(Role).index(self)


class User(AbstractUser):
    """Somebody who logs in."""

    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="user_role"),
        ]

    @property
    def effective_role(self) -> Role:
        """The user's role; a superuser is an admin."""
        return Role.ADMIN if self.is_superuser else Role(self.role)


class Token(models.Model):
    """Lets a program act for a user, at most in ``role``. Only its digest is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)
    digest = models.CharField(max_length=64, unique=True, editable=False)  # SHA-256, hex.
    hint = models.CharField(max_length=12, editable=False)  # How it begins, to tell tokens apart.
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

    def is_valid(self, now: datetime) -> bool:
        """Whether it still counts."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def digest_of(secret: str) -> str:
    """How a secret is kept: it is random and long, so a plain digest cannot be guessed back."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    """A fresh token as its owner gets to see it, once."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)
