"""Delays of the barriers of each job's newest completed checkpoint, by edge.

A job may have tens of thousands of channels, so the database aggregates them by edge, and
only the ``EDGES_MAX`` slowest edges of a job have series.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from django.db import connection
from prometheus_client.core import GaugeMetricFamily, Metric

from checkpoints.models import GateAlignment

EDGES_MAX = 10

_BY_EDGE = """
    SELECT a.checkpoint_id, a.operator, regexp_replace(a.upstream[1], '-[0-9]+$', ''),
           max(c.arrived), max(c.blocked)
    FROM {table} a, unnest(a.arrived_ms, a.blocked_ms) AS c (arrived, blocked)
    WHERE a.checkpoint_id = ANY(%s)
    GROUP BY 1, 2, 3
    ORDER BY max(c.arrived) DESC NULLS LAST
"""


def channel_metrics(checkpoints: Mapping[int, str]) -> Iterator[Metric]:
    """The two metric families; ``checkpoints`` maps primary keys of checkpoints to their jobs."""
    delay = GaugeMetricFamily(
        "weir_channel_barrier_delay_seconds",
        "Time from the first barrier to the edge's last, of a job's newest completed checkpoint.",
        labels=["job", "edge"],
    )
    blocked = GaugeMetricFamily(
        "weir_checkpoint_blocked_seconds",
        "Longest blocking of a channel of the edge, of a job's newest completed checkpoint.",
        labels=["job", "edge"],
    )
    shown: dict[str, int] = defaultdict(int)
    with connection.cursor() as cursor:
        table = connection.ops.quote_name(GateAlignment._meta.db_table)
        cursor.execute(_BY_EDGE.format(table=table), [list(checkpoints)])
        for key, operator, upstream, arrived_ms, blocked_ms in cursor.fetchall():
            job = checkpoints[key]
            shown[job] += 1
            if shown[job] <= EDGES_MAX:
                edge = f"{upstream} -> {operator}"
                delay.add_metric([job, edge], (arrived_ms or 0.0) / 1_000)
                blocked.add_metric([job, edge], (blocked_ms or 0.0) / 1_000)
    yield from (delay, blocked)
