"""The live state of a job for its page: one small value per event of its stream.

The page is rendered from the same value. It holds texts, so that browser and server format numbers
alike. Data that is long or changes rarely (``details``, figures) is fetched by the page when its
revision in here changes.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import reverse

from checkpoints.conditions import facts as condition_facts
from checkpoints.conditions.judge import ConditionKind, list_conditions
from checkpoints.conditions.reasons import reason_text
from checkpoints.models import Checkpoint
from controlplane.base import server_losses
from controlplane.base.formatting import (
    NOTHING,
    age,
    duration,
    interval,
    iso,
    milliseconds_between,
    moment,
    number,
    plural,
    rough_duration,
    size,
)
from frontend.base import in_flight, status, verdict_cache
from frontend.base.texts import has_more, headline, tail
from frontend.base.up_time import UpTime, first_ran, running_since
from frontend.graph import picture, state
from frontend.job import queries, relaunch
from frontend.operations import results
from jobs.models import (
    Attempt,
    DesiredState,
    Driver,
    Job,
    Operation,
    OperationKind,
    OperationStatus,
)
from jobs.operations import blocking
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus, JobStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

# While a checkpoint is younger than this, the verdict on the one before is shown.
VERDICT_PATIENCE_MS = 2_000.0
_TELL_CAUSE = (ConditionKind.JOB_FAILED, ConditionKind.JOB_RECOVERING)

Json = dict[str, Any]


def snapshot(job_id: str) -> Json | None:
    """The live state of a job, as JSON; None where there is no such job.

    See ``with_graph``.
    """
    pair = with_graph(job_id)
    return None if pair is None else pair[0]


def with_graph(job_id: str, *, is_opening: bool = False) -> tuple[Json, picture.Graph] | None:
    """The snapshot and the operator graph whose state is in it; None where there is no such job.

    Eleven queries for a job of any size, one more for an unaligned checkpoint, and those of a
    verdict that is not cached. While nothing happens, only ``now`` and the texts of ages change;
    ``changes`` leaves those out.

    Args:
        is_opening: Whether a page waits for it, not an update of one (``verdict_cache``).
    """
    job = queries.job_with_now(job_id)
    if job is None:
        return None
    now = job.now
    driver = queries.newest_driver(job_id)
    attempt = queries.newest_attempt(job_id)
    checkpoints = queries.recent_checkpoints(job_id)
    completed = queries.last_completed(job_id)
    chains = queries.chain_subtasks(job_id)
    operations = queries.recent_operations(job_id)
    asked = actions(job, operations)
    shown = _shown(checkpoints)

    coordinator = getattr(job, "coordinator", None)
    settled = [row for row in checkpoints if row.settled_at is not None]
    facts = condition_facts.gather(
        job,
        now,
        driver_status=driver.status if driver else None,
        driver_heard_at=driver.heard_at if driver else None,
        driver_created_at=driver.created_at if driver else None,
        attempt_running_at=attempt.running_at if attempt else None,
        completed=completed,
        settled=settled,
        due_at=coordinator.due_at if coordinator else None,
        is_redis_away=server_losses.is_redis_away(settings.REDIS_URL),
        undeleted=job.undeleted,
    )
    ended = _ended(job, operations)
    # A planned end is no reason for a verdict, even if the last checkpoint failed.
    judged = None if ended else _judged(shown, settled, now)
    verdict = verdict_cache.cached_verdict(judged, is_opening=is_opening) if judged else None
    operators = picture.build_graph(queries.operators(job_id), queries.edges(job_id))
    value = {
        "now": iso(now),
        "id": job.pk,
        "name": job.name,
        "status": status.of_job(job.status, is_planned=job.is_planned),
        "ended": ended,
        "cause": _cause(job),
        "is_over": job.is_over,
        # The page shows the cause by itself.
        "attention": status.of_conditions(
            one for one in list_conditions(facts) if not (job.cause and one.kind in _TELL_CAUSE)
        ),
        "uptime": _uptime(job, attempt, now),
        "relaunch": _relaunch(job, driver, attempt, chains, now),
        "attempt": _attempt(attempt, is_over=job.is_over),
        "subtasks": _subtasks(job, chains),
        "driver": _driver(driver, now, is_silent=facts.silent_ms is not None),
        "last_completed": _completed(completed, now),
        "none_completed": "There is nothing to restore."
        if job.is_over
        else "A recovery would start from the beginning.",
        "next_trigger_at": None
        if job.is_over or not coordinator
        else iso(coordinator.next_trigger_at),
        "progress": _progress(shown, now),
        "progress_empty": _why_no_checkpoint(job),
        "graph": _graph(job, operators, now, shown, chains, verdict if judged is shown else None),
        "verdict": verdict,
        "judged": _judged_name(judged),
        "operations": [operation(row, now) for row in operations],
        "actions": asked | _why_not(asked),
        "revisions": _revisions(
            job,
            max((row.settled_at for row in settled if row.settled_at is not None), default=None),
            attempt,
        ),
    }
    return value, operators


def _graph(
    job: Job,
    operators: picture.Graph,
    now: datetime,
    shown: Checkpoint | None,
    chains: dict[str, state.ChainSubtasks],
    verdict: Json | None,
) -> Json:
    is_under_way = shown is not None and shown.settled_at is None
    waiting, stalls = queries.held_up(job.pk, shown.number if shown and is_under_way else None)
    moment = state.Moment(
        now=now,
        checkpoint=shown,
        chains=chains,
        acknowledged=queries.acknowledged(shown.pk if shown else None),
        waiting=waiting,
        # Stalls of a failed attempt stay in the rows until the next attempt begins.
        stalls=stalls if job.status == JobStatus.RUNNING else (),
        slow=_slow(operators, shown, verdict),
        in_flight=queries.in_flight(shown),
        is_over=job.is_over,
    )
    shown_state = state.graph_state(operators, moment)
    for chain in shown_state["chains"]:
        chain["url"] = reverse("operator-page", args=[job.pk, chain["uid"]])
    return shown_state


def _slow(
    operators: picture.Graph, shown: Checkpoint | None, verdict: Json | None
) -> state.Slow | None:
    """The channel that delayed the shown, settled checkpoint, from its verdict."""
    if shown is None or shown.settled_at is None or not verdict or not verdict["channel"]:
        return None
    channel = verdict["channel"]
    took = f"{duration(shown.alignment_ms)}" if shown.alignment_ms else ""
    return state.settled_slow(
        operators, channel["sender"], channel["receiver"], took, channel["text"], verdict["tone"]
    )


def _judged(
    shown: Checkpoint | None, settled: Sequence[Checkpoint], now: datetime
) -> Checkpoint | None:
    """The checkpoint of the verdict: the shown one once it takes longer than usual, until then the
    last settled one."""
    if shown is None or shown.settled_at is not None or not settled:
        return shown
    took = milliseconds_between(shown.triggered_at, now) or 0.0
    usual = settled[0].duration_ms or 0.0
    return shown if took > max(VERDICT_PATIENCE_MS, usual) else settled[0]


def _judged_name(checkpoint: Checkpoint | None) -> Json | None:
    if checkpoint is None:
        return None
    return {
        "name": f"{_kind(checkpoint)} {number(checkpoint.number)}",
        "url": reverse("checkpoint-page", args=[checkpoint.job_id, checkpoint.number]),
        "state": "under way" if checkpoint.settled_at is None else "",
    }


def revisions(job_id: str) -> dict[str, str] | None:
    """The snapshot's ``revisions`` alone, for ETags; None where there is no such job."""
    job = queries.job_with_revisions(job_id)
    if job is None:
        return None
    return _revisions(job, queries.newest_settled_at(job_id), queries.newest_attempt(job_id))


def _revisions(
    job: "WithAnnotations[Job, queries.RevisionColumns]",
    settled_at: datetime | None,
    attempt: Attempt | None,
) -> dict[str, str]:
    parts: tuple[Any, ...] = (job.newest_exception or 0, job.recovery_target_s or "")
    if attempt is not None:
        parts += (attempt.number, iso(attempt.running_at), attempt.catch_up_ms, attempt.end)
    return {
        "checkpoints": iso(settled_at) or "",
        "events": "/".join(map(str, parts)),
        "alerts": f"{job.newest_alert or ''}/{job.firing_alerts or 0}",
    }


def changes(value: Json) -> Json:
    """A snapshot without the values that change with time only, to compare snapshots."""
    return {key: _timeless(item) for key, item in value.items() if key != "now"}


def _timeless(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _timeless(part) for key, part in item.items() if not key.endswith("_ago")}
    if isinstance(item, list):
        return [_timeless(part) for part in item]
    return item


# Operations that others can block. A fork of an existing checkpoint is never blocked.
_WAITING = {
    "checkpoint": OperationKind.CHECKPOINT,
    "restart": OperationKind.RESTART,
    "savepoint": OperationKind.SAVEPOINT,
    "stop": OperationKind.STOP,
    "rollback": OperationKind.ROLLBACK,
    "rescale": OperationKind.RESCALE,
    "upgrade": OperationKind.UPGRADE,
}


def actions(job: Job, operations: Sequence[Operation] = ()) -> Json:
    """The reason why each operation is impossible now, by name; empty where it is possible.

    Args:
        operations: The job's newest; those under way block others.
    """
    reasons = _actions_by_state(job)
    reasons["archive"] = _why_not_archive(job)
    under_way = [row for row in reversed(operations) if row.ended_at is None]
    for name, kind in _WAITING.items():
        if (other := blocking(kind, under_way)) is not None:
            busy = (
                f"{status.OPERATION_KIND[OperationKind(other.kind)]} under way: wait for its end."
            )
            reasons[name] = reasons[name] or busy
    return reasons


def _why_not_archive(job: Job) -> str:
    if not job.is_over:
        return "Only a job that is over is archived: stop or cancel it first."
    return "" if job.archived_at is None else "The job is archived."


# The operations whose reasons stand beside the buttons of the head and of the savepoints.
_HEAD = ("checkpoint", "savepoint", "stop")
_GOING_BACK = ("rollback", "rescale", "savepoint")


def _why_not(reasons: Json) -> Json:
    """Each reason once, as text: a disabled button has no tooltip for keyboard users."""
    return {
        name: " ".join(dict.fromkeys(filter(None, (reasons[action] for action in names))))
        for name, names in (("why_not_act", _HEAD), ("why_not_go_back", _GOING_BACK))
    }


_RELAUNCHES = ("rollback", "rescale", "upgrade")


def _actions_by_state(job: Job) -> Json:
    names = ("checkpoint", "cancel", "restart", "savepoint", "stop", *_RELAUNCHES)
    # Operations without effect on the job are possible in any state.
    always = {"fork": "", "preview": "", "compare": ""}
    if job.desired == DesiredState.CANCELED and not job.is_over:
        reason = "The job is being cancelled."
        return dict.fromkeys(names, reason) | always
    if job.status == JobStatus.FINISHED:
        ended = "The job has finished. A rollback to a savepoint or checkpoint resumes it."
        return dict.fromkeys(names, ended) | {"rollback": ""} | always
    if job.is_over:
        ended = "A restart resumes the job, from its newest completed checkpoint if it has one."
        return (
            dict.fromkeys(names, ended) | {"restart": "", **dict.fromkeys(_RELAUNCHES, "")} | always
        )
    if job.status == JobStatus.CANCELLING:
        reason = "The job is being cancelled."
        return dict.fromkeys(names, reason) | always
    running = job.status == JobStatus.RUNNING
    taken = "" if running else "Checkpoints can only be taken while the job is running."
    going_back = "The job is starting." if job.status in _STARTING else ""
    return {
        "checkpoint": taken,
        "cancel": "",
        "restart": "",
        "savepoint": taken,
        "stop": taken,
        **dict.fromkeys(_RELAUNCHES, going_back),
        **always,
    }


_STARTING = (JobStatus.CREATED, JobStatus.INITIALIZING)


def _cause(job: Job) -> Json | None:
    if not job.cause:
        return None
    return {
        "tone": "idle" if job.is_planned else "bad",
        "headline": headline(job.cause),
        "text": tail(job.cause),
        "has_more": has_more(job.cause),
    }


def _ended(job: Job, operations: Sequence[Operation]) -> Json | None:
    """The planned end of a job in words; None while it has not ended, or where it failed."""
    if job.status == JobStatus.FINISHED:
        by = _by(operations, OperationKind.STOP)
        how = "Stopped with a savepoint" if by is not None else "Finished: its sources ended"
        then = "All its output is committed."
    elif job.status == JobStatus.CANCELED:
        by, how = _by(operations, OperationKind.CANCEL), "Cancelled"
        then = (
            "Output since the last completed checkpoint is not committed. A restart resumes the "
            "job from there."
        )
    else:
        return None
    return {
        "text": f"{how}{f' by {by}' if by else ''}",
        "at": iso(job.ended_at),
        "at_text": moment(job.ended_at),
        "then": then,
        "tone": status.of_job(job.status)["tone"],
    }


def _by(operations: Sequence[Operation], kind: OperationKind) -> str | None:
    """The account whose request of a kind succeeded last among the job's newest operations."""
    rows = [
        row for row in operations if row.kind == kind and row.status == OperationStatus.SUCCEEDED
    ]
    if not rows:
        return None
    return rows[0].requested_by.get_username() if rows[0].requested_by else "the control plane"


def _uptime(
    job: "WithAnnotations[Job, queries.PageColumns]", attempt: Attempt | None, now: datetime
) -> Json:
    running_at = running_since(attempt.running_at, attempt.ended_at) if attempt else None
    up = UpTime(job.ended_up_time, None if job.is_over else running_at)
    return {
        "since": iso(up.since),
        "text_ago": up.text(now),
        "label": "Ran for" if job.is_over else "Uptime",
        "started": first_ran(job.started_at),
    }


def _attempt(
    attempt: "WithAnnotations[Attempt, queries.WorkerColumns] | None", *, is_over: bool
) -> Json:
    if attempt is None:
        nothing = "nothing was deployed" if is_over else "nothing is deployed yet"
        return {"number": NOTHING, "restored": nothing, "started_at": None, "memory": ""}
    if attempt.restored_checkpoint is not None:
        restored = f"restored from checkpoint {attempt.restored_checkpoint:,}"
    else:
        restored = "started from the beginning"
    return {
        "number": number(attempt.number),
        "restored": restored,
        "started_at": iso(attempt.started_at),
        "memory": "" if is_over else _memory(attempt),
    }


def _memory(attempt: "WithAnnotations[Attempt, queries.WorkerColumns]") -> str:
    """The memory of the attempt's worker processes; empty while none is known."""
    if not attempt.memory:
        return ""
    said = f"its slots hold {size(sum(worker['bytes'] for worker in attempt.memory))} of memory"
    largest, *others = attempt.memory
    if not others:
        return said
    return f"{said}, at most {size(largest['bytes'])} in slot {largest['slot']}"


def _relaunch(
    job: Job,
    driver: Driver | None,
    attempt: "WithAnnotations[Attempt, queries.WorkerColumns] | None",
    chains: dict[str, state.ChainSubtasks],
    now: datetime,
) -> list[Json]:
    return relaunch.relaunch_steps(
        job,
        driver,
        attempt,
        is_first=attempt is None or attempt.is_first,
        running=sum(chain.running for chain in chains.values()),
        total=sum(chain.total for chain in chains.values()),
        now=now,
    )


def _subtasks(job: Job, chains: dict[str, state.ChainSubtasks]) -> str:
    total = sum(chain.total for chain in chains.values())
    if not total or job.is_over:
        return ""
    running = sum(chain.running for chain in chains.values())
    if running == total:
        return f"{plural(total, 'subtask')} running"
    return f"{running:,} of {plural(total, 'subtask')} running"


def _driver(driver: Driver | None, now: datetime, *, is_silent: bool) -> Json:
    if driver is None:
        nothing = {"status": None, "heard_at": None, "heard_ago": "", "where": "", "log": ""}
        return {"number": NOTHING} | nothing
    return {
        "number": number(driver.number),
        "status": status.of_driver(driver.status, is_silent=is_silent),
        # A live driver reports every second; only a silent driver's last report is shown.
        "heard_at": iso(driver.heard_at) if is_silent else None,
        "heard_ago": age(milliseconds_between(driver.heard_at, now)) if is_silent else "",
        "where": driver.spark_application,
        "log": reverse("api:driver-log", args=[driver.job_id, driver.number])
        if driver.directory
        else "",
    }


def _completed(checkpoint: Checkpoint | None, now: datetime) -> Json | None:
    if checkpoint is None:
        return None
    return {
        "number": number(checkpoint.number),
        "at": iso(checkpoint.settled_at),
        "at_ago": age(milliseconds_between(checkpoint.settled_at, now)),
        "at_text": moment(checkpoint.settled_at),
        "duration": duration(checkpoint.duration_ms),
        "size": size(checkpoint.state_bytes),
    }


def _shown(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The checkpoint with its progress on the page: the oldest under way, else the newest."""
    under_way = [row for row in checkpoints if row.settled_at is None]
    return under_way[-1] if under_way else checkpoints[0] if checkpoints else None


def _progress(checkpoint: Checkpoint | None, now: datetime) -> Json | None:
    if checkpoint is None:
        return None
    is_under_way = checkpoint.settled_at is None
    took = milliseconds_between(checkpoint.triggered_at, now)
    return {
        "number": number(checkpoint.number),
        "url": reverse("checkpoint-page", args=[checkpoint.job_id, checkpoint.number]),
        "kind": _kind(checkpoint),
        "status": status.of_checkpoint(checkpoint.status),
        "is_under_way": is_under_way,
        "since": iso(checkpoint.triggered_at) if is_under_way else None,
        "took_ago": rough_duration(took) if is_under_way else duration(checkpoint.duration_ms),
        "acknowledged": checkpoint.acknowledged_count,
        "expected": checkpoint.subtask_count,
        "text": f"{checkpoint.acknowledged_count:,} of "
        f"{plural(checkpoint.subtask_count, 'subtask')} acknowledged{_overtaken(checkpoint)}",
        "ended": "Aborted" if checkpoint.status == CheckpointStatus.ABORTED else "Failed",
        "why": _why(checkpoint),
    }


def _overtaken(checkpoint: Checkpoint) -> str:
    outcome = in_flight.outcome_text(checkpoint)
    if not outcome:
        return ""
    return f"; {outcome}, {size(checkpoint.in_flight_bytes)} of in-flight data persisted"


def _kind(checkpoint: Checkpoint) -> str:
    return "Checkpoint" if checkpoint.kind == CheckpointKind.CHECKPOINT else "Savepoint"


def _why(checkpoint: Checkpoint) -> str:
    if checkpoint.status not in UNCOMPLETED:
        return ""
    reason = reason_text(checkpoint.reason)
    cause = headline(checkpoint.cause)
    return f"{reason}: {cause}" if cause else reason


def _why_no_checkpoint(job: Job) -> str:
    if job.is_over:
        return "This job ended before its first checkpoint."
    config = job.checkpoint_config
    if config is None:
        return "No checkpoint yet: the pipeline is still building its graph."
    interval_ms = config.get("interval_ms")
    if interval_ms is None:
        return (
            "No checkpoint yet, and none is due: periodic checkpoints are off. Take one with the "
            "button, or switch them on with env.enable_checkpointing(1_000) in the pipeline."
        )
    return (
        "No checkpoint yet. The first one is triggered once all subtasks are running, then one "
        f"every {interval(interval_ms)}."
    )


def operation(row: Operation, now: datetime) -> Json:
    """One operation for a page."""
    return {
        "id": str(row.pk),
        "kind": results.title(row),
        "status": status.of_operation(row.status),
        "by": row.requested_by.get_username() if row.requested_by else "the control plane",
        "at": iso(row.created_at),
        "at_ago": age(milliseconds_between(row.created_at, now)),
        "at_text": moment(row.created_at),
        "url": reverse("job-operation", args=[row.job_id, row.pk]),
        "phase": status.phase_text(row.kind, _progress_of(row, "phase")),
        "result": _result(row),
        "deadline_at": iso(row.deadline_at) if row.ended_at is None else "",
        "deadline_text": moment(row.deadline_at) if row.ended_at is None else "",
    }


def _progress_of(row: Operation, name: str) -> Any:
    return (row.progress or {}).get(name)


def _result(row: Operation) -> str:
    if row.error:
        return headline(row.error)
    if row.ended_at is None:
        return ""
    result = row.result or {}
    took = duration(milliseconds_between(row.created_at, row.ended_at))
    match row.kind:
        case OperationKind.CHECKPOINT if (which := _number_in(result)) is not None:
            return f"checkpoint {which:,}"
        case OperationKind.SAVEPOINT | OperationKind.STOP if (
            which := _number_in(result)
        ) is not None:
            return f"savepoint {which:,}, took {took}"
        case OperationKind.FORK if "job" in result:
            return f"forked as {result['job']}"
        case OperationKind.PREVIEW | OperationKind.COMPARE:
            return f"done in {took}"
    return f"took {took}"


def _number_in(result: Json) -> int | None:
    values = (result.get(name) for name in ("checkpoint", "checkpoint_id", "number"))
    return next((one for one in values if isinstance(one, int)), None)
