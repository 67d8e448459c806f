"""``Authorization: Bearer weir_…``: a program acts for a user."""

from datetime import timedelta

from django.db.models import Q
from django.db.models.functions import Now
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.accounts.models import Token, User, digest_of

SCHEME = "Bearer"
LAST_USE_EVERY = timedelta(minutes=1)  # A write per request would be most of what the API writes.
_SECRET_LENGTH_MAX = 200


class TokenAuthentication(BaseAuthentication):
    """A token that is neither expired nor revoked, of a user who may log in."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        """The user and the token; None where the request brings none.

        Raises:
            AuthenticationFailed: It brings one that does not count. What is wrong with it is said
                only to whoever knows the whole token.
        """
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        secret = secret.strip()
        if not secret or len(secret) > _SECRET_LENGTH_MAX or not secret.isascii():
            raise AuthenticationFailed("The Authorization header holds no token.")
        token = (
            Token.objects.select_related("user")
            .annotate(now=Now())
            .filter(digest=digest_of(secret))
            .first()
        )
        if token is None:
            raise AuthenticationFailed("This token is not known here.")
        if token.revoked_at is not None:
            raise AuthenticationFailed("This token was revoked.")
        if not token.is_valid(token.now):
            raise AuthenticationFailed("This token expired.")
        if not token.user.is_active:
            raise AuthenticationFailed("This token's account is closed.")
        if token.last_used_at is None or token.now - token.last_used_at >= LAST_USE_EVERY:
            # The condition again: of many requests at once one writes.
            stale = Q(last_used_at=None) | Q(last_used_at__lte=token.now - LAST_USE_EVERY)
            Token.objects.filter(stale, pk=token.pk).update(last_used_at=token.now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return f'{SCHEME} realm="weir"'


class TokenScheme(OpenApiAuthenticationExtension):
    """How the OpenAPI document names it."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """A bearer token in the header."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token from `POST /api/v1/tokens` or `manage.py weir_token`.",
        }
