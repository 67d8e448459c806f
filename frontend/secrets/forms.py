"""Forms of secrets. A value that was sent is never part of a page."""

from typing import Any

from django import forms

from controlplane.secrets.services import VALUE_BYTES_MAX
from frontend.base.forms import ServiceForm
from weir.config import SECRET_NAME_LENGTH_MAX


class ValueInput(forms.Textarea):
    """A field for a value of several lines, which is empty whenever it is shown."""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        """The context without the value."""
        return super().get_context(name, None, attrs)


class ValueForm(ServiceForm):
    """The value of a secret."""

    value = forms.CharField(
        max_length=VALUE_BYTES_MAX,
        strip=False,
        widget=ValueInput(
            attrs={"rows": 4, "spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
        ),
        help_text="Encrypted when it is stored, and never shown again. Line breaks count.",
        error_messages={"required": "Give a value."},
    )

    def clean_value(self) -> str:
        """The value with the line breaks that its file has: browsers send CR LF."""
        return str(self.cleaned_data["value"]).replace("\r\n", "\n")


class NewForm(ValueForm):
    """A secret to be stored."""

    name = forms.CharField(
        max_length=SECRET_NAME_LENGTH_MAX,
        help_text="Letters, digits and underscores, such as WAREHOUSE_PASSWORD. Viewers see names.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocomplete": "off"}),
        error_messages={"required": "Give the secret a name."},
    )
    field_order = ("name", "value")
