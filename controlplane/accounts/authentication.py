"""Authentication by ``Authorization: Bearer weir_…``, with which a program acts for a user."""

from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypedDict

from django.conf import settings
from django.contrib.auth import get_user
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.accounts.models import Role, Token, User, digest_of
from controlplane.audit.models import record
from controlplane.base import unusable_database
from controlplane.base.lookups import only

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

SCHEME = "Bearer"
LAST_USE_EVERY = timedelta(minutes=1)  # A write per request would be most of the API's writes.
_SECRET_LENGTH_MAX = 200


class NowColumn(TypedDict):
    """The further column of a token."""

    now: datetime


def token_in(authorization: str) -> Token | None:
    """The valid token in an ``Authorization`` header, with its user; None for another header.

    Raises:
        AuthenticationFailed: The token is not valid. Only a caller who knows the whole token is
            told why.
    """
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != SCHEME.lower():
        return None
    secret = secret.strip()
    if not secret or len(secret) > _SECRET_LENGTH_MAX or not secret.isascii():
        raise AuthenticationFailed("The Authorization header holds no token; send `Bearer weir_…`.")
    token: WithAnnotations[Token, NowColumn] | None
    token = only(_tokens().filter(digest=digest_of(secret)))
    if token is None:
        raise AuthenticationFailed("This token is unknown; create one with `manage.py weir_token`.")
    if token.revoked_at is not None:
        raise AuthenticationFailed("This token was revoked; create another one.")
    if not token.is_valid(token.now):
        raise AuthenticationFailed("This token has expired; create another one.")
    if not token.user.is_active:
        raise AuthenticationFailed("This token's account is closed; an admin can open it.")
    if token.last_used_at is None or token.now - token.last_used_at >= LAST_USE_EVERY:
        # The condition is repeated so that only one of many concurrent requests writes.
        stale = Q(last_used_at=None) | Q(last_used_at__lte=token.now - LAST_USE_EVERY)
        with unusable_database.notes("the use of a token"):
            rows = Token.objects.filter(stale, pk=token.pk).update(last_used_at=token.now)
            if rows and token.last_used_at is None:
                record(token.user, "token.first_use", f"token/{token.pk}")
    return token


@cache
def _tokens() -> "QuerySet[WithAnnotations[Token, NowColumn]]":
    """Tokens with their users and the time now; put together once for all requests."""
    return Token.objects.select_related("user").annotate(now=Now())


def role_of_headers(authorization: str, session_key: str) -> tuple[str, Role] | None:
    """The account's name and the role of a request, by its headers alone, before its body is read.

    None: the request has neither a valid token nor the session of a login.
    """
    try:
        token = token_in(authorization)
    except AuthenticationFailed:
        return None
    if token is not None:
        return token.user.get_username(), token.effective_role
    user = user_of_session(session_key)
    return None if user is None else (user.get_username(), user.effective_role)


def user_of_session(session_key: str) -> User | None:
    """The user who is logged in with a session; None: no open account is."""
    if not session_key:
        return None
    sessions = import_module(settings.SESSION_ENGINE)
    # ``get_user`` reads the session alone; this needs none of Django's middlewares.
    request = HttpRequest()
    request.session = sessions.SessionStore(session_key)
    user = get_user(request)
    return user if isinstance(user, User) else None


class TokenAuthentication(BaseAuthentication):
    """Authentication by a token that is neither expired nor revoked, of an open account."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        """The user and the token; None for a request without a token.

        Raises:
            AuthenticationFailed: The token is not valid. Only a caller who knows the whole token is
                told why.
        """
        token = token_in(request.headers.get("Authorization", ""))
        return None if token is None else (token.user, token)

    def authenticate_header(self, request: Request) -> str:
        """The challenge in a 401 response."""
        return f'{SCHEME} realm="weir"'


class TokenScheme(OpenApiAuthenticationExtension):
    """The OpenAPI scheme of token authentication."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """A bearer token in the header."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token from `POST /api/v1/tokens` or `manage.py weir_token`.",
        }
