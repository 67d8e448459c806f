"""Permissions: the role that each method of a view needs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.http import HttpRequest
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.accounts.models import Role, Token, User

if TYPE_CHECKING:  # REST framework reads its settings, which name this module, on import.
    from rest_framework.views import APIView


def account(request: Request | HttpRequest) -> User:
    """The user of a request that ``RolePermission`` has let through."""
    assert isinstance(request.user, User)
    return request.user


def role_of(request: Request) -> Role:
    """The role of a request: the user's, or the token's where that is lower."""
    if isinstance(request.auth, Token):
        return request.auth.effective_role
    return account(request).effective_role


def role_needed(view: "APIView | type[APIView]", method: str) -> Role:
    """The role that a method of a view needs.

    A view names it in ``roles``; by default reading needs a viewer, any other method an operator.
    """
    roles: Mapping[str, str] = getattr(view, "roles", {})
    default = Role.VIEWER if method in SAFE_METHODS else Role.OPERATOR
    return Role(roles.get("GET" if method == "HEAD" else method, default))


class RolePermission(BasePermission):
    """The check that a request has the role that the view needs for its method.

    Methods in a view's ``login_only`` are refused to tokens: a leaked token must not be able to
    create its successor.
    """

    def has_permission(self, request: Request, view: "APIView") -> bool:
        """Check role and login; refuse with the reason.

        Raises:
            PermissionDenied: The role is too low, or a token may not do this.
        """
        if not request.user.is_authenticated:
            return False  # Told apart by REST framework: 401.
        method = request.method or ""
        has, needs = role_of(request), role_needed(view, method)
        if has.rank < needs.rank:
            raise PermissionDenied(f"This needs the role {needs.value}; yours is {has.value}.")
        if isinstance(request.auth, Token) and method in getattr(view, "login_only", ()):
            raise PermissionDenied("A token may not do this; log in with name and password.")
        return True
