"""Metrics of this web process: requests, event streams, polls, refused requests of drivers."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from controlplane.base import errors, request_metrics

REGISTRY = CollectorRegistry()
REGISTRY.register(request_metrics.durations)

event_streams = Gauge(
    "weir_web_event_streams", "Event streams open to browsers in this process.", registry=REGISTRY
)
command_polls = Gauge(
    "weir_web_command_polls",
    "Drivers that wait for commands in this process.",
    registry=REGISTRY,
)
driver_refusals = Counter(
    "weir_web_driver_refusals",
    "Requests of drivers that this process refused, by the code of the problem.",
    ["code"],
    registry=REGISTRY,
)
for _refusal in (  # From the start: Prometheus sees no increase of a series that begins with 1.
    errors.Invalid,
    errors.Unauthorized,
    errors.NotFound,
    errors.DriverFenced,
    errors.TooBusy,
    errors.TooSlow,
    errors.TooLarge,
    errors.DiskFull,
):
    driver_refusals.labels(_refusal.code)
