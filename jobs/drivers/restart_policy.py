"""The restart of a job whose driver was lost: whether it gets another driver, and when.

Failures within a driver are handled by its job master; the two count separately.
"""

import random

from jobs.models import Job
from weir.config import CheckpointConfig, RestartConfig, RestartStrategyKind
from weir.protocol.restarts import RestartState, initial, on_failure
from weir.protocol.wire import from_wire, to_wire

# Until the pipeline has declared its restart strategy: three launches, the last two a second after
# a failure. The causes of a failed first launch (no Java, no such master) rarely go away.
LAUNCH_FAILURES_MAX = 3
_LAUNCHING = RestartConfig(
    kind=RestartStrategyKind.FIXED_DELAY, attempts_max=LAUNCH_FAILURES_MAX - 1, delay_ms=1_000
)


def after_loss(job: Job, now_ms: int) -> int | None:
    """The delay before the next driver in milliseconds; None: give up.

    Changes the job's ``restart_state``, which the caller saves.
    """
    state, delay_ms = on_failure(_state(job), now_ms, random.random())
    job.restart_state = to_wire(state)
    return delay_ms


def _state(job: Job) -> RestartState:
    """The state after earlier losses, unless the pipeline has declared another strategy since."""
    fresh = _initial(job)
    if job.restart_state is not None:
        known = from_wire(RestartState, job.restart_state)
        if (known.config, known.kind) == (fresh.config, fresh.kind):
            return known
    return fresh


def _initial(job: Job) -> RestartState:
    if job.restart_config is None:
        return initial(_LAUNCHING, has_checkpoints=False)
    config = from_wire(RestartConfig, job.restart_config)
    checkpoints = from_wire(CheckpointConfig, job.checkpoint_config or {})
    return initial(config, has_checkpoints=checkpoints.interval_ms is not None)
