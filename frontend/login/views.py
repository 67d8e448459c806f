"""Login and logout. The admin site's own login leads here: there is one door."""

from typing import Any

from django.contrib.auth import REDIRECT_FIELD_NAME, get_user_model
from django.contrib.auth import views as auth_views
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import path, reverse
from django.views.decorators.cache import never_cache

from controlplane.accounts import login, sessions
from controlplane.accounts.login import TooManyAttempts
from controlplane.accounts.models import Role
from frontend.base.access import may

NAME_LENGTH_MAX = 150


class LoginForm(AuthenticationForm):
    """Name and password, checked by ``controlplane.accounts.login``."""

    def clean(self) -> dict[str, Any]:
        """The cleaned data, once the password was found right.

        Raises:
            TooManyAttempts: The password was not looked at.
        """
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if name is not None and password:
            assert self.request is not None
            self.user_cache = login.authenticate(self.request, name, password)
            if self.user_cache is None:
                raise self.get_invalid_login_error()
        return self.cleaned_data


class LoginPage(auth_views.LoginView):
    """The page to log in, with 429 where too many attempts have failed."""

    authentication_form = LoginForm
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Log in and go on to the page that was asked for."""
        try:
            return super().post(request, *args, **kwargs)
        except TooManyAttempts as refused:
            typed = request.POST.get("username", "")[:NAME_LENGTH_MAX]
            form = LoginForm(request, initial={"username": typed})
            page = self.render_to_response(self.get_context_data(form=form, refused=refused.detail))
            page.status_code = refused.status
            page.headers["Retry-After"] = str(refused.retry_after_s)
            return page

    def form_valid(self, form: Any) -> HttpResponse:
        """Begin the session."""
        response = super().form_valid(form)
        login.note_login(form.get_user())
        sessions.note_login(self.request)
        return response


class LogoutPage(auth_views.LogoutView):
    """The end of a session."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """End the session and go to the login."""
        if isinstance(request.user, get_user_model()):
            login.note_logout(request.user)
        return super().post(request, *args, **kwargs)


@never_cache
def admin_login(request: HttpRequest) -> HttpResponseBase:
    """The admin site's login: leads to the page of all logins.

    Raises:
        PermissionDenied: The account is logged in and is no admin's.
    """
    if request.user.is_authenticated and not may(request.user, Role.ADMIN):
        raise PermissionDenied("The admin site needs the role admin.")
    return redirect_to_login(request.GET.get(REDIRECT_FIELD_NAME) or reverse("admin:index"))


def admin_password_change(request: HttpRequest) -> HttpResponseBase:
    """The admin site's change of one's own password: leads to its page of that account.

    There no old password is asked for, so none can be guessed, and the change is audited.
    """
    if not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path())
    return redirect("admin:auth_user_password_change", request.user.pk)


urlpatterns = [
    path("login/", LoginPage.as_view(), name="login"),
    path("logout/", LogoutPage.as_view(), name="logout"),
]

# To be resolved before the admin site's own.
admin_urlpatterns = [
    path("admin/login/", admin_login),
    path("admin/logout/", LogoutPage.as_view()),
    path("admin/password_change/", admin_password_change),
]
