"""Forms of passwords, tokens and accounts."""

from datetime import timedelta
from typing import Any

from django import forms
from django.http import HttpRequest

from controlplane.accounts import login, services
from controlplane.accounts.models import Role, User
from frontend.base.forms import ServiceForm, choice_field

NAME_LENGTH_MAX = 100
NEVER = "never"
_DAYS = (7, 30, services.TOKEN_LIFETIME.days, 365)


def _password_field(label: str, autocomplete: str, **options: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": autocomplete}),
        error_messages={"required": "Give a password."},
        **options,
    )


class PasswordForm(ServiceForm):
    """One's own new password, and the present one as proof."""

    old = _password_field("Present password", "current-password")
    password = _password_field(
        "New password",
        "new-password",
        help_text="At least 12 characters; a sentence is good. Ends your other logins.",
    )
    again = _password_field("New password again", "new-password")

    def __init__(self, data: Any, request: HttpRequest, user: User) -> None:
        super().__init__(data)
        self._request, self._user = request, user

    def clean(self) -> dict[str, Any]:
        """The cleaned data, once the present password was found right.

        Raises:
            TooManyAttempts: The password was not looked at.
        """
        given = self.cleaned_data
        if {"old", "password", "again"} <= given.keys():
            if given["password"] != given["again"]:
                self.add_error("again", "The two new passwords differ.")
            elif not login.authenticate(self._request, self._user.get_username(), given["old"]):
                self.add_error("old", "This is not your present password.")
        return given


class TokenForm(ServiceForm):
    """A new token of one's own."""

    name = forms.CharField(
        max_length=NAME_LENGTH_MAX,
        help_text="Its purpose, such as wallboard or nightly-deploy.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocomplete": "off"}),
        error_messages={"required": "Give the token a name."},
    )
    role = forms.TypedChoiceField(coerce=Role, initial=services.TOKEN_ROLE)
    expires_at = forms.ChoiceField(
        label="Ends after",
        choices=[*((str(days), f"{days} days") for days in _DAYS), (NEVER, "never")],
        initial=str(services.TOKEN_LIFETIME.days),
    )

    def __init__(self, data: Any, user: User) -> None:
        super().__init__(data)
        choice_field(self, "role").choices = [
            (role.value, role.label) for role in Role if role.rank <= user.effective_role.rank
        ]

    @property
    def lifetime(self) -> timedelta | None:
        """The chosen time from now to the end; None: it has none."""
        chosen = self.cleaned_data["expires_at"]
        return None if chosen == NEVER else timedelta(days=int(chosen))


class AccountForm(ServiceForm):
    """The role of an account, and whether it is open."""

    role = forms.TypedChoiceField(
        coerce=Role,
        choices=Role.choices,
        help_text="A viewer reads. An operator runs jobs, and so code. An admin manages accounts.",
    )
    is_active = forms.BooleanField(
        required=False,
        label="Open",
        help_text="A closed account cannot log in; its tokens and logins end.",
    )


class NewAccountForm(ServiceForm):
    """An account to be created."""

    username = forms.RegexField(
        services.USERNAME,
        max_length=services.USERNAME_LENGTH_MAX,
        label="Name",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocomplete": "off"}),
        error_messages={
            "required": "Give the account a name.",
            "invalid": "A name has letters, digits and @ . + - _ only.",
        },
    )
    email = forms.EmailField(
        required=False, label="E-mail", widget=forms.EmailInput(attrs={"autocomplete": "off"})
    )
    role = forms.TypedChoiceField(coerce=Role, choices=Role.choices, initial=Role.VIEWER)
