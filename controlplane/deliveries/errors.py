"""Refusals about endpoints."""

from controlplane.base.errors import Refusal


class EndpointDisabled(Refusal):
    """A disabled endpoint takes no deliveries."""

    code = "endpoint_disabled"
    status = 409
    title = "The endpoint is disabled"


class NameTaken(Refusal):
    """Another endpoint has the name."""

    code = "name_taken"
    status = 409
    title = "The name is taken"
