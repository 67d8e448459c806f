"""Gauges of this web process's open event streams and command polls."""

from prometheus_client import CollectorRegistry, Gauge

REGISTRY = CollectorRegistry()

event_streams = Gauge(
    "weir_web_event_streams", "Event streams open to browsers in this process.", registry=REGISTRY
)
command_polls = Gauge(
    "weir_web_command_polls",
    "Drivers that wait for commands in this process.",
    registry=REGISTRY,
)
