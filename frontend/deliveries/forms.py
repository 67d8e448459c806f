"""Forms of endpoints. Keys that were sent are never part of a page."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms

from controlplane.deliveries import endpoints
from controlplane.deliveries.machine import DeliveryStatus
from controlplane.deliveries.models import Endpoint
from controlplane.deliveries.receivers.base import Receiver
from controlplane.deliveries.sending.addresses import URL_LENGTH_MAX
from frontend.base.forms import ServiceForm, choice_field, moment_field

SECRET_LENGTH_MAX = 200
KEPT = "Leave it empty to keep the present one."
_PLAIN = {"spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}


class KeyInput(forms.TextInput):
    """A field for a key, which is empty whenever it is shown."""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        """The context without the value."""
        return super().get_context(name, None, attrs)


class EndpointForm(ServiceForm):
    """A new endpoint, or the changes of one: the fields that its kind takes."""

    name = forms.CharField(
        max_length=100,
        help_text="Such as “On call”. Rules, the log and the audit log name it.",
        error_messages={"required": "Give the endpoint a name."},
    )
    description = forms.CharField(max_length=500, required=False)
    url = forms.CharField(
        max_length=URL_LENGTH_MAX,
        required=False,
        label="URL",
        widget=forms.TextInput(attrs=_PLAIN | {"inputmode": "url"}),
    )
    routing_key = forms.CharField(
        max_length=endpoints.ROUTING_KEY_LENGTH_MAX,
        required=False,
        widget=KeyInput(attrs=_PLAIN),
        help_text="The integration key of a PagerDuty service. Encrypted, and never shown again.",
    )
    authorization = forms.CharField(
        max_length=endpoints.AUTHORIZATION_LENGTH_MAX,
        required=False,
        widget=KeyInput(attrs=_PLAIN),
        help_text="The header of this name, such as “Bearer …”. Encrypted, and never shown again.",
    )
    without_authorization = forms.BooleanField(
        required=False, label="Send no authorization any more"
    )
    recipients = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs=_PLAIN | {"rows": 3}),
        help_text=f"Addresses of e-mail, one a line; at most {endpoints.RECIPIENTS_MAX}.",
    )
    secret = forms.CharField(
        max_length=SECRET_LENGTH_MAX,
        required=False,
        label="Signing secret",
        widget=KeyInput(attrs=_PLAIN),
        help_text="Empty: one is generated, and shown once. Your own begins with whsec_.",
    )
    allow_internal = forms.BooleanField(
        required=False,
        label="Allow an address in your own network, and plain HTTP to it",
        help_text="For receivers of your own, such as an Alertmanager.",
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None,
        receiver: Receiver,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.receiver, self.endpoint = receiver, endpoint
        super().__init__(data, initial=None if endpoint is None else _shown(endpoint))
        for name in endpoints.KIND_FIELDS:
            if name not in receiver.takes:
                del self.fields[name]
        if "url" in self.fields:
            self.fields["url"].help_text = self._about_url()
        else:
            del self.fields["allow_internal"]
        if endpoint is None or "authorization" not in receiver.takes:
            del self.fields["without_authorization"]
        if endpoint is None:
            for name in receiver.needs:
                self.fields[name].required = True
                self.fields[name].error_messages["required"] = "Endpoints of this kind need it."
        if endpoint is not None:
            self.fields.pop("secret", None)  # It has a page of its own.
            for name in {"authorization", "routing_key"} & self.fields.keys():
                self.fields[name].help_text = KEPT

    def _about_url(self) -> str:
        if self.endpoint is not None:
            return f"{KEPT} It leads to {self.endpoint.origin}; the rest of it is not shown."
        if self.receiver.url:
            return f"Empty: {self.receiver.url}"
        return "https://… Encrypted, and never shown again but for its host."

    def clean_recipients(self) -> list[str]:
        """The addresses, one a line or with commas."""
        text = self.cleaned_data["recipients"].replace(",", "\n")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def given(self) -> dict[str, Any]:
        """The fields for the service: all that are filled in, of a change those that differ."""
        data = dict(self.cleaned_data)
        is_without = data.pop("without_authorization", False)
        given = {
            name: value
            for name, value in data.items()
            if name not in ("url", "secret", "routing_key", "authorization") or value
        }
        if is_without:
            given["authorization"] = ""
        if self.endpoint is not None:
            present = {name: getattr(self.endpoint, name, None) for name in given}
            given = {name: value for name, value in given.items() if value != present[name]}
        return given


class RotationForm(ServiceForm):
    """A new signing secret."""

    secret = forms.CharField(
        max_length=SECRET_LENGTH_MAX,
        required=False,
        label="New signing secret",
        widget=KeyInput(attrs=_PLAIN),
        help_text="Empty: one is generated, and shown once. Your own begins with whsec_.",
    )
    keep_previous_s = forms.TypedChoiceField(
        label="The present secret",
        coerce=int,
        choices=[
            (86_400, "signs as well for a day, while receivers change over"),
            (7 * 86_400, "signs as well for a week"),
            (0, "signs no more: it has leaked"),
        ],
        widget=forms.RadioSelect,
        initial=86_400,
    )
    # A form that is sent twice must not replace the secret that its first sending has shown.
    version = forms.CharField(widget=forms.HiddenInput, required=False)


class RangeForm(ServiceForm):
    """Deliveries of a time, to be sent again. Times are in UTC."""

    endpoint = forms.ChoiceField(
        error_messages={"required": "Choose an endpoint.", "invalid_choice": "Choose an endpoint."}
    )
    status = forms.ChoiceField(
        label="Deliveries that were",
        choices=[
            (DeliveryStatus.GIVEN_UP.value, "given up"),
            (DeliveryStatus.DELIVERED.value, "delivered"),
        ],
    )
    after = moment_field("Created after")
    before = moment_field("Created before")

    def __init__(
        self, data: Mapping[str, Any] | None, choices: list[tuple[str, str]], **options: Any
    ) -> None:
        super().__init__(data, **options)
        choice_field(self, "endpoint").choices = choices


def first_times(now: datetime) -> dict[str, datetime]:
    """The last day."""
    return {"after": now.astimezone(UTC) - timedelta(days=1), "before": now.astimezone(UTC)}


def _shown(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "description": endpoint.description,
        "recipients": "\n".join(map(str, endpoint.recipients)),
        "allow_internal": endpoint.allow_internal,
    }
