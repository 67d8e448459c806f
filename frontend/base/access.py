"""Access to the pages by role."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from controlplane.accounts.models import Role, User

View = Callable[..., HttpResponseBase]


def may(user: Any, role: Role) -> bool:
    """Whether a user is logged in with at least this role."""
    return bool(user.is_authenticated) and user.effective_role.rank >= role.rank


def role_required(role: Role) -> Callable[[View], View]:
    """Restrict a view to this role and those above it; others log in first, or are refused."""

    def decorate(view: View) -> View:
        @login_required
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not may(request.user, role):
                raise PermissionDenied(f"This page needs the role {role.label.lower()}.")
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def account(request: HttpRequest) -> User:
    """The user of a request to a view that ``role_required`` guards."""
    assert isinstance(request.user, User)  # role_required has let no other through.
    return request.user
