"""The kinds of receivers, a folder each. Pure: they render, and ``sending`` sends."""

from collections.abc import Mapping

from controlplane.deliveries.receivers.alertmanager import Alertmanager
from controlplane.deliveries.receivers.alertmanager_webhook import AlertmanagerWebhook
from controlplane.deliveries.receivers.base import Receiver
from controlplane.deliveries.receivers.cloudevents import CloudEvents
from controlplane.deliveries.receivers.email import Email
from controlplane.deliveries.receivers.pagerduty import PagerDuty
from controlplane.deliveries.receivers.slack import Slack
from controlplane.deliveries.receivers.teams import Teams
from controlplane.deliveries.receivers.webhook import Webhook

KINDS: Mapping[str, Receiver] = {
    receiver.kind: receiver
    for receiver in (
        Webhook(),
        CloudEvents(),
        Alertmanager(),
        AlertmanagerWebhook(),
        PagerDuty(),
        Slack(),
        Teams(),
        Email(),
    )
}
