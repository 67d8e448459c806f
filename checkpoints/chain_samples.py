"""Samples of the counters of all chains, for the charts of operators.

One statement for all jobs, outside of the drivers' batches: they take no longer for it. It locks no
row but those that it adds. The time of a sample is that of the newest report in it, so a chain that
reported nothing since the last sample gets none, and two samplers at once add each sample once.
"""

from django.db import connection

from jobs.models import ChainSample, Subtask
from weir.protocol.lifecycle import JOB_TRANSITIONS, CheckpointStatus, SubtaskStatus

_ALIVE = [status.value for status in JOB_TRANSITIONS]

_SAMPLE = f"""
    WITH
    job AS (SELECT id FROM jobs_job WHERE status = ANY(%(alive)s)),
    load AS (
        SELECT s.job_id, s.chain,
            max(s.updated_at) AS at,
            max(s.attempt) AS attempt,
            count(*) FILTER (WHERE s.status = %(running)s) AS running,
            sum((s.metrics ->> 'records_in')::float8) AS records_in,
            sum((s.metrics ->> 'records_out')::float8) AS records_out,
            sum((s.metrics ->> 'busy_ms')::float8) AS busy_ms,
            sum((s.metrics ->> 'idle_ms')::float8) AS idle_ms,
            sum((s.metrics ->> 'back_pressured_ms')::float8) AS back_pressured_ms,
            max((s.rates ->> 'busy')::float8) AS busiest,
            min((s.metrics ->> 'watermark_ms')::bigint) FILTER (WHERE s.status = %(running)s)
                AS watermark_ms
        FROM job JOIN {Subtask._meta.db_table} s ON s.job_id = job.id
        WHERE s.metrics ->> 'busy_ms' IS NOT NULL
        GROUP BY s.job_id, s.chain
    ),
    completed AS (
        SELECT job.id AS job_id, newest.id
        FROM job CROSS JOIN LATERAL (
            SELECT c.id FROM checkpoints_checkpoint c
            WHERE c.job_id = job.id AND c.status = %(completed)s AND c.has_details
            ORDER BY c.number DESC LIMIT 1
        ) newest
    ),
    state AS (
        SELECT job_id, chain, jsonb_object_agg(operator, bytes) AS bytes
        FROM (
            SELECT c.job_id, a.chain, a.operator, sum(a.state_bytes) AS bytes
            FROM completed c JOIN checkpoints_subtaskack a ON a.checkpoint_id = c.id
            GROUP BY c.job_id, a.chain, a.operator
        ) each_operator
        GROUP BY job_id, chain
    )
    INSERT INTO {ChainSample._meta.db_table} (
        job_id, chain, at, attempt, running, records_in, records_out, busy_ms, idle_ms,
        back_pressured_ms, busiest, watermark_ms, state_bytes, is_first_of_minute
    )
    SELECT load.job_id, load.chain, at, attempt, running, records_in, records_out, busy_ms, idle_ms,
        back_pressured_ms, busiest, watermark_ms, coalesce(state.bytes, '{{}}'),
        NOT EXISTS (
            SELECT 1 FROM {ChainSample._meta.db_table} earlier
            WHERE earlier.job_id = load.job_id AND earlier.chain = load.chain
                AND earlier.at >= date_trunc('minute', load.at)
        )
    FROM load LEFT JOIN state ON state.job_id = load.job_id AND state.chain = load.chain
    ON CONFLICT DO NOTHING
"""


def sample() -> int:
    """Add a sample of each chain that has reported since its last one; return their number."""
    with connection.cursor() as cursor:
        cursor.execute(
            _SAMPLE,
            {
                "alive": _ALIVE,
                "running": SubtaskStatus.RUNNING.value,
                "completed": CheckpointStatus.COMPLETED.value,
            },
        )
        return int(cursor.rowcount)
