"""Who may do what: one role per method of a view."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.accounts.models import Role, Token

if TYPE_CHECKING:  # REST framework reads its settings, which name this module, on import.
    from rest_framework.views import APIView


def role_of(request: Request) -> Role:
    """What whoever asks may do at most: the user's role, or the token's where that is less."""
    role: Role = request.user.effective_role
    if isinstance(request.auth, Token):
        role = min(role, Role(request.auth.role), key=lambda one: one.rank)
    return role


def role_needed(view: "APIView | type[APIView]", method: str) -> Role:
    """The role that a method of a view asks for.

    A view names it in ``roles``; where it does not, reading needs a viewer and all else an
    operator.
    """
    roles: Mapping[str, str] = getattr(view, "roles", {})
    default = Role.VIEWER if method in SAFE_METHODS else Role.OPERATOR
    return Role(roles.get("GET" if method == "HEAD" else method, default))


class RolePermission(BasePermission):
    """Whoever asks has the role that the view wants for this method.

    Methods in a view's ``login_only`` are refused to tokens: one that leaked must not be able to
    make itself a successor.
    """

    def has_permission(self, request: Request, view: "APIView") -> bool:
        """Refuse with the reason.

        Raises:
            PermissionDenied: The role is not enough, or a token may not do this.
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
