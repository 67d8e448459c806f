"""All benchmarks by the names of their rows, each measured in a process of its own."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.benchmarks import (
    alert_rules,
    api,
    back_pressure,
    bandwidth,
    codecs,
    control_plane,
    dashboard,
    deliveries,
    encryption,
    event_time,
    going_back,
    growth,
    hops,
    increments,
    large_maps,
    large_state,
    latency,
    local_copies,
    mapped_columns,
    memory,
    overview,
    pause,
    records,
    recovery,
    retention,
    samples,
    saturation,
    services,
    slots,
    streams,
    throughput,
    triggers,
    under_way,
)
from tests.benchmarks.report import Row

BENCHMARKS: Mapping[str, Callable[[bool], list[Row]]] = {
    "aggregate": throughput.aggregate,
    "parquet": throughput.parquet,
    "checkpoints": throughput.checkpoints,
    "saturation": saturation.saturation,
    "event-time": event_time.event_time,
    "back-pressure": back_pressure.back_pressure,
    "pause": pause.pause,
    "bandwidth": bandwidth.bandwidth,
    "encryption": encryption.encryption,
    "recovery": recovery.recovery,
    "under-way": under_way.under_way,
    "latency": latency.latency,
    "records": records.records,
    "samples": samples.samples,
    "hops": hops.hops,
    "growth": growth.growth,
    "memory": memory.memory,
    "increments": increments.increments,
    "large-maps": large_maps.large_maps,
    "large-state": large_state.large_state,
    "mapped-columns": mapped_columns.mapped_columns,
    "local-copies": local_copies.local_copies,
    "control-plane": control_plane.control_plane,
    "streams": streams.streams,
    "triggers": triggers.triggers,
    "codecs": codecs.codecs,
    "slots": slots.slots,
    "api": api.api,
    "going-back": going_back.going_back,
    "dashboard": dashboard.dashboard,
    "overview": overview.overview,
    "services": services.services,
    "deliveries": deliveries.deliveries,
    "retention": retention.retention,
    "alert-rules": alert_rules.alert_rules,
}


def measured(name: str, quick: bool) -> list[Row]:
    """The rows of one benchmark, in a process of its own: what others loaded has no part in it."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, name, quick).result()


def _measure(name: str, quick: bool) -> list[Row]:
    logging.getLogger("weir").setLevel(logging.ERROR)  # Failures are what recovery is about.
    return BENCHMARKS[name](quick)
