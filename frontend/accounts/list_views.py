"""The pages of all accounts, for admins: their list, one account, and the forms that change it."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts import services, sessions
from controlplane.accounts.models import Role, User
from controlplane.base import clock
from controlplane.base.errors import existing
from frontend.accounts.account_views import FORM, account_context
from frontend.accounts.forms import AccountForm, NewAccountForm
from frontend.base.access import account, action_for, form_for, page_for
from frontend.base.forms import ServiceForm, Words, form_page, sent

SHOWN = 100  # On one page of the list.


@page_for(Role.ADMIN)
def list_accounts(request: HttpRequest) -> HttpResponse:
    """All accounts with their roles and logins. Two queries."""
    now = clock.now()
    logins = Count("sessions", filter=Q(sessions__expire_date__gt=now), distinct=True)
    rows = User.objects.annotate(logins=logins).order_by("-is_active", "username")
    page = Paginator(rows, SHOWN).get_page(request.GET.get("page"))
    return render(request, "frontend/account_list.html", {"page": page})


@page_for(Role.ADMIN)
def show_account(request: HttpRequest, user_id: int) -> HttpResponse:
    """One account with its tokens and logins."""
    return render(request, "frontend/account.html", account_context(request, _user(user_id)))


@form_for(Role.ADMIN)
def new_account(request: HttpRequest) -> HttpResponse:
    """Create an account; its password is on the answer to the form, and nowhere else."""
    form = NewAccountForm(sent(request))
    if form.is_valid():
        given = form.cleaned_data
        with form.refusals():
            user, password = services.create_user(
                account(request), given["username"], given["role"], email=given["email"]
            )
            return _password_page(request, user, password)
    words = Words(
        "New account",
        "Create the account",
        "A password is generated, and shown once. The account’s owner can change it.",
    )
    return _form_page(request, words, form, reverse("account-list"), "Accounts")


@form_for(Role.ADMIN)
def change_account(request: HttpRequest, user_id: int) -> HttpResponse:
    """Change an account's role, close it or open it."""
    user = _user(user_id)
    before = {"role": user.effective_role.value, "is_active": user.is_active}
    form = AccountForm(sent(request), initial=before)
    if form.is_valid():
        with form.refusals():
            services.set_role(account(request), user.pk, form.cleaned_data["role"])
            services.set_active(account(request), user.pk, form.cleaned_data["is_active"])
            messages.success(request, f"Account {user.get_username()} was changed.")
            return HttpResponseRedirect(reverse("account-list"))
    words = Words(
        f"Change account {user.get_username()}",
        "Change the account",
        "Its role holds from its next request on, also for its tokens.",
    )
    return _form_page(request, words, form, *_back_to(user))


@form_for(Role.ADMIN)
def replace_password(request: HttpRequest, user_id: int) -> HttpResponse:
    """Confirm that an account is to get a new password; generate and show it once."""
    user = _user(user_id)
    if request.method == "POST":
        return _password_page(request, user, services.set_password(account(request), user.pk))
    words = Words(
        f"Replace the password of {user.get_username()}?",
        "Replace the password",
        "The present password no longer holds, and all logins of the account end. Its tokens stay "
        "valid.",
        is_danger=True,
    )
    return _form_page(request, words, None, *_back_to(user))


@action_for(Role.ADMIN)
def end_logins(request: HttpRequest, user_id: int) -> HttpResponse:
    """End all logins of an account."""
    user = _user(user_id)
    count = sessions.end(account(request), user, sessions.sessions_of(user))
    messages.success(request, f"{count} of {user.get_username()}’s logins ended.")
    return HttpResponseRedirect(reverse("account-page", args=[user.pk]))


def _user(user_id: int) -> User:
    user: User = existing(User.objects.filter(pk=user_id), f"There is no account {user_id}.")
    return user


def _back_to(user: User) -> tuple[str, str]:
    return reverse("account-page", args=[user.pk]), user.get_username()


def _form_page(
    request: HttpRequest, words: Words, form: ServiceForm | None, back: str, crumb: str
) -> HttpResponse:
    return form_page(request, FORM, form, {"words": words, "back": back, "crumb": crumb})


def _password_page(request: HttpRequest, user: User, password: str) -> HttpResponse:
    shown = {
        "title": f"Password of {user.get_username()}",
        "says": "Give this password to its owner now; the page of the account changes it:",
        "secret": password,
        "back": reverse("account-list"),
        "back_text": "Accounts",
    }
    return render(request, "frontend/shown_once.html", shown)


_ONE = "accounts/<int:user_id>"

urlpatterns = [
    path("accounts/", list_accounts, name="account-list"),
    path("accounts/new", new_account, name="account-new"),
    path(f"{_ONE}/", show_account, name="account-page"),
    path(f"{_ONE}/change", change_account, name="account-change"),
    path(f"{_ONE}/password", replace_password, name="account-password-replace"),
    path(f"{_ONE}/logins/end", end_logins, name="account-logins-end"),
]
