"""The time that requests take, as a metric of this process; ``process_metrics`` shows it."""

from prometheus_client import Histogram

_AREAS = {
    **{name: name for name in ("api", "gateway", "static", "metrics")},
    **dict.fromkeys(("healthz", "readyz"), "probes"),
}
durations = Histogram(
    "weir_web_request_duration_seconds",
    "Time to answer requests in this process, by area and class of status.",
    ["area", "status"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=None,  # That of ``controlplane.process_metrics``.
)
for _area in {*_AREAS.values(), "pages"}:  # From the start, as increases of a new series go unseen.
    for _status in ("2xx", "3xx", "4xx", "5xx"):
        durations.labels(_area, _status)


def observe(path: str, status: int, took_s: float) -> None:
    """Count a request; one that waits on purpose is left out."""
    if area := area_of(path):
        durations.labels(area, f"{status // 100}xx").observe(took_s)


def area_of(path: str) -> str:
    """The part of the web process that a path leads to; empty: its requests wait on purpose."""
    if path.startswith("/events/") or (path.startswith("/gateway/") and path.endswith("/commands")):
        return ""
    first = path.split("/", 2)[1]
    return _AREAS.get(first, "pages")
