"""Access to the pages by role, and the headers and methods of each kind of view."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.views.decorators.cache import cache_control, never_cache
from django.views.decorators.http import require_http_methods

from controlplane.accounts.models import Role, User
from controlplane.base.errors import NotFound

View = Callable[..., HttpResponseBase]


def may(user: Any, role: Role) -> bool:
    """Whether a user is logged in with at least this role."""
    return bool(user.is_authenticated) and user.effective_role.rank >= role.rank


def _view(
    role: Role, *, methods: Sequence[str], cache: Callable[[View], View] = never_cache
) -> Callable[[View], View]:
    """Restrict a view to this role and those above it; others log in first, or are refused.

    A service's ``NotFound`` becomes the page 404.
    """

    def decorate(view: View) -> View:
        @cache
        @require_http_methods(list(methods))
        @login_required
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not may(request.user, role):
                raise PermissionDenied(f"This page needs the role {role.label.lower()}.")
            try:
                return view(request, *args, **kwargs)
            except NotFound as refusal:
                raise Http404(refusal.detail) from refusal

        return guarded

    return decorate


page_for = partial(_view, methods=["GET"])  # What it shows may change at any time.
# With an ETag: the browser keeps the response, and revalidates it each time.
data_for = partial(_view, methods=["GET"], cache=cache_control(private=True, no_cache=True))
form_for = partial(_view, methods=["GET", "HEAD", "POST"])
action_for = partial(_view, methods=["POST"])


def account(request: HttpRequest) -> User:
    """The user of a request to a view for a role."""
    assert isinstance(request.user, User)  # No other has been let through.
    return request.user
