"""The tabs of the area "Alerts", and the head that its pages share."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from controlplane.accounts.models import Role
from frontend.base.access import may
from frontend.base.pages import may_operate

TABS = (
    ("alert-list", "Alerts"),
    ("rule-list", "Rules"),
    ("silence-list", "Silences"),
    ("endpoint-list", "Endpoints"),
    ("delivery-list", "Deliveries"),
)


def head(request: HttpRequest, tab: str) -> dict[str, Any]:
    """The context of ``frontend/alert_base.html``.

    Args:
        tab: The URL name of the current page.
    """
    return {
        "tabs": [
            {"text": text, "url": reverse(name), "is_current": name == tab} for name, text in TABS
        ],
        "may_operate": may_operate(request),
        "may_administer": may(request.user, Role.ADMIN),
    }
