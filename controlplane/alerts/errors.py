"""Refusals about rules, alerts and silences."""

from controlplane.base.errors import Refusal


class RuleNameTaken(Refusal):
    """Another rule has the name."""

    code = "name_taken"
    status = 409
    title = "The name is taken"


class AlertOver(Refusal):
    """A resolved alert is not acknowledged."""

    code = "alert_over"
    status = 409
    title = "The alert is resolved"


class SilenceOver(Refusal):
    """A silence that is over is not ended."""

    code = "silence_over"
    status = 409
    title = "The silence is over"
