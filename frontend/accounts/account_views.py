"""The page of an account: its logins and tokens, and the forms that change and end them."""

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.db.models import F, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts import services, sessions
from controlplane.accounts.login import TooManyAttempts
from controlplane.accounts.models import Role, Token, User
from controlplane.base import clock
from controlplane.base.errors import existing
from frontend.accounts.browsers import browser_name
from frontend.accounts.forms import PasswordForm, TokenForm
from frontend.base.access import account, action_for, form_for, may, page_for
from frontend.base.forms import Words, form_page, sent

TOKENS_SHOWN = 200
FORM = "frontend/service_form.html"
OTHERS = "others"  # In place of one session's handle: all but the one of the request.


def account_context(request: HttpRequest, user: User) -> dict[str, Any]:
    """The context of ``frontend/account.html``. Two queries."""
    now = clock.now()
    valid = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now))
    tokens = user.tokens.filter(valid).order_by(F("last_used_at").desc(nulls_last=True), "-pk")
    logins = [
        {
            "row": row,
            "handle": sessions.handle(row.pk),
            "browser": browser_name(row.browser),
            "latest_end": sessions.latest_end(row.began_at),
            "is_this": row.pk == request.session.session_key,
        }
        for row in sessions.sessions_of(user)
    ]
    return {
        "owner": user,
        "is_own": user == request.user,
        "tokens": tokens[:TOKENS_SHOWN],
        "logins": logins,
        "has_others": any(not login["is_this"] for login in logins),
        "may_operate": may(request.user, Role.OPERATOR),
    }


@page_for(Role.VIEWER)
def show_account(request: HttpRequest) -> HttpResponse:
    """One's own account."""
    return render(request, "frontend/account.html", account_context(request, account(request)))


@form_for(Role.VIEWER)
def change_password(request: HttpRequest) -> HttpResponse:
    """Change one's own password; all other logins of the account end."""
    user = account(request)
    form = PasswordForm(sent(request), request, user)
    try:
        is_valid = form.is_valid()
    except TooManyAttempts as refused:
        # Not all fields were cleaned; the page is that of the empty form.
        form = PasswordForm(None, request, user)
        form.refusal = refused
        is_valid = False
    if is_valid:
        with form.refusals():
            services.set_password(user, user.pk, form.cleaned_data["password"])
            user.refresh_from_db()
            update_session_auth_hash(request, user)
            messages.success(request, "Your password was changed, and your other logins ended.")
            return HttpResponseRedirect(reverse("account"))
    words = Words(
        "Change your password",
        "Change the password",
        "The new password holds from now on. This browser stays logged in, and tokens stay valid.",
    )
    return _form_page(request, words, form)


@form_for(Role.OPERATOR)
def new_token(request: HttpRequest) -> HttpResponse:
    """Create a token; its secret is on the answer to the form, and nowhere else."""
    user = account(request)
    form = TokenForm(sent(request), user)
    if form.is_valid():
        with form.refusals():
            lifetime = form.lifetime
            token, secret = services.create_token(
                user,
                user,
                form.cleaned_data["name"],
                form.cleaned_data["role"],
                expires_at=None if lifetime is None else clock.now() + lifetime,
            )
            shown = {
                "title": f"Token {token.name}",
                "says": "Give this to the program now, as the header",
                "header": "Authorization: Bearer",
                "secret": secret,
                "back": reverse("account"),
                "back_text": "Your account",
            }
            return render(request, "frontend/shown_once.html", shown)
    words = Words(
        "New token",
        "Create the token",
        "A program that has its secret acts as you, at most in the role chosen here.",
    )
    return _form_page(request, words, form)


@form_for(Role.OPERATOR)
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    """Confirm that a token is to be revoked, and revoke it once the form is sent."""
    user = account(request)
    visible = Token.objects.select_related("user")
    if not may(user, Role.ADMIN):
        visible = visible.filter(user=user)
    token: Token = existing(visible.filter(pk=token_id), f"There is no token {token_id}.")
    is_own = token.user_id == user.pk
    back = reverse("account") if is_own else reverse("account-page", args=[token.user_id])
    if request.method == "POST":
        services.revoke(user, token)
        messages.success(request, f"Token {token.name} was revoked.")
        return HttpResponseRedirect(back)
    words = Words(
        f"Revoke token {token.name}?",
        f"Revoke token {token.name}",
        "Requests with it are refused from now on. It cannot be made valid again.",
        is_danger=True,
    )
    crumb = "Your account" if is_own else token.user.get_username()
    return _form_page(request, words, None, back=back, crumb=crumb)


@action_for(Role.VIEWER)
def end_sessions(request: HttpRequest) -> HttpResponse:
    """End one of one's own other logins, or all of them."""
    user, wanted = account(request), request.POST.get("session", "")
    others = [one for one in sessions.sessions_of(user) if one.pk != request.session.session_key]
    if wanted != OTHERS:
        others = [one for one in others if sessions.handle(one.pk) == wanted]
    count = sessions.end(user, user, others)
    if count:
        messages.success(
            request, "The login was ended." if count == 1 else f"{count} logins ended."
        )
    else:
        messages.error(request, "This login has ended already, or is the one you use.")
    return HttpResponseRedirect(reverse("account"))


def _form_page(
    request: HttpRequest,
    words: Words,
    form: PasswordForm | TokenForm | None,
    *,
    back: str | None = None,
    crumb: str = "Your account",
) -> HttpResponse:
    context = {"words": words, "back": back or reverse("account"), "crumb": crumb}
    return form_page(request, FORM, form, context)


urlpatterns = [
    path("account/", show_account, name="account"),
    path("account/password", change_password, name="account-password"),
    path("account/tokens/new", new_token, name="token-new"),
    path("account/tokens/<int:token_id>/revoke", revoke_token, name="token-revoke"),
    path("account/sessions/end", end_sessions, name="session-end"),
]
