"""A job's events as lines of text: one per change of its life and per checkpoint."""

from dataclasses import dataclass

from weir.cli import formats
from weir.cli.job_view import JobView, Picture, slowest_channel
from weir.common.tracebacks import headline_of
from weir.config import JobConfig
from weir.ids import CheckpointId, SubtaskId
from weir.jobmaster.history import CheckpointRecord
from weir.protocol.events import (
    AttemptStarted,
    CaughtUp,
    CheckpointSettled,
    JobChanged,
    JobEvent,
    Notice,
    Recovered,
)
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import SubtaskMetrics, SubtaskStalled
from weir.protocol.pending import SAVEPOINT_KINDS, STOP_KINDS

METRICS_EVERY_MS = 10_000
CPU_WAIT_TOLD = 0.25  # As in the verdicts of a control plane.
STALLS_EVERY_MS = 10_000  # Of one subtask: a function slow for every record stalls often.
_MISSING_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A line; the live table shows the content of one that is not ``lasting``."""

    text: str
    lasting: bool = True


class PlainLog:
    """Turns events into lines, once ``view`` has folded them in."""

    def __init__(self, view: JobView) -> None:
        self._view = view
        self._metrics_at_ms: float | None = None
        self._stalls_at_ms: dict[SubtaskId, float] = {}

    def on_event(self, event: JobEvent, now_ms: float) -> list[Line]:
        """The lines for one event, most often none."""
        match event:
            case JobChanged():
                return [self._changed(event)]
            case AttemptStarted():
                return [Line(_attempt(event))]
            case CheckpointSettled():
                record = self._view.history.checkpoints.get(event.checkpoint_id)
                return [_settled(event, record)]
            case Recovered():
                return [Line(_recovered(event))]
            case CaughtUp():
                took = formats.duration(event.catch_up_ms)
                return [Line(f"attempt {event.attempt} caught up after {took}")]
            case Notice():
                return [Line(f"notice: {event.text}")]
            case SubtaskMetrics():
                return self._metrics(now_ms)
            case SubtaskStalled():
                return self._stalled(event, now_ms)
            case _:
                return []  # Acknowledgements and the like: in the line of their checkpoint.

    def _changed(self, event: JobChanged) -> Line:
        text = f"job {event.status}"
        if event.status is JobStatus.FAILING:
            return Line(f"{text}: {gist(event.cause)}")
        return Line(text, lasting=False)

    def _stalled(self, event: SubtaskStalled, now_ms: float) -> list[Line]:
        told_ms = self._stalls_at_ms.get(event.chain)
        if told_ms is not None and now_ms - told_ms < STALLS_EVERY_MS:
            return []
        self._stalls_at_ms[event.chain] = now_ms
        took = formats.duration(event.stalled_ms)
        frame, _, code = event.stack.rstrip().rpartition("  File ")[2].partition("\n")
        where = f"{frame}: {code.strip()}" if code else frame
        return [Line(f"{event.chain} has been in one call for {took}: {where}")]

    def _metrics(self, now_ms: float) -> list[Line]:
        if self._metrics_at_ms is None:
            self._metrics_at_ms = now_ms  # Rates take a while to mean something.
        rate = self._view.source_rate()
        if now_ms - self._metrics_at_ms < METRICS_EVERY_MS or rate is None:
            return []
        self._metrics_at_ms = now_ms
        chains = [c for c in self._view.picture(now_ms).chains if c.busy is not None]
        parts = [f"{formats.rate(rate)} from the sources"]
        if chains:
            busiest = max(chains, key=lambda chain: chain.busy or 0.0)
            parts.append(f"busiest {busiest.name} {formats.share(busiest.busy or 0.0)}")
            held = max(chains, key=lambda chain: chain.back_pressured or 0.0)
            if held.back_pressured:
                parts.append(
                    f"most back-pressured {held.name} {formats.share(held.back_pressured)}"
                )
            waits = max(chain.cpu_wait or 0.0 for chain in chains)
            if waits >= CPU_WAIT_TOLD:
                parts.append(f"a slot without a processor {formats.share(waits)} of the time")
        if bad := sum(chain.bad_records for chain in chains):
            parts.append(f"{bad:,} bad")
        watermarks = [c.watermark_ms for c in chains if c.watermark_ms is not None]
        if watermarks:
            parts.append(f"watermark {formats.watermark(min(watermarks), now_ms)}")
        return [Line(f"records: {', '.join(parts)}", lasting=False)]


def introduction(view: JobView) -> str:
    """The line about a job that starts: name, id, slots and checkpointing."""
    return (
        f"{view.name} ({view.job_id}): {formats.counted(view.graph.slot_count, 'slot')}, "
        f"{_checkpointing(view.config)}"
    )


def memory_warning(config: JobConfig) -> str | None:
    """The warning for checkpoints in memory; None: they are in a storage, or off."""
    if config.checkpoints.interval_ms is None or config.checkpoints.storage is not None:
        return None
    return (
        "warning: checkpoints are kept in the driver's memory and are lost with it; "
        "give --storage DIR to keep them"
    )


def summary(view: JobView, now_ms: float) -> str:
    """The line about a job that is over: its end, its checkpoints and recoveries."""
    picture = view.picture(now_ms)
    history = view.history
    failed = f", {history.failed_count:,} failed" if history.failed_count else ""
    aborted = f", {history.aborted_count:,} aborted" if history.aborted_count else ""
    return (
        f"{picture.name} ({picture.job_id}) {history.status} after "
        f"{formats.duration(picture.uptime_ms)}: "
        f"{formats.counted(history.completed_count, 'checkpoint')} completed{failed}{aborted}, "
        f"{formats.counted(len(history.recoveries), 'recovery', 'recoveries')}{_bad(picture)}"
        f"{_stop(view)}"
    )


def _bad(picture: Picture) -> str:
    count = sum(chain.bad_records for chain in picture.chains)
    return f", {formats.counted(count, 'bad record')} left out" if count else ""


def _stop(view: JobView) -> str:
    if view.history.status is not JobStatus.FINISHED:
        return ""
    stops = [c for c in view.history.checkpoints.values() if c.kind in STOP_KINDS]
    return "".join(
        f"; stopped with savepoint {stop.checkpoint_id}, from which the job can be restored"
        for stop in stops[-1:]
        if stop.is_completed
    )


def gist(cause: str) -> str:
    """The gist of a cause: the operator's line, or of another traceback the first and last line."""
    if headline := headline_of(cause):
        return headline
    lines = [line.strip() for line in cause.strip().splitlines() if line.strip()]
    if not lines:
        return "no cause was given"
    return lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"


def _checkpointing(config: JobConfig) -> str:
    checkpoints = config.checkpoints
    if checkpoints.interval_ms is None:
        return "no checkpoints"
    mode = checkpoints.mode.value.replace("_", " ")
    where = "in memory" if checkpoints.storage is None else f"in {checkpoints.storage}"
    every = f"{checkpoints.interval_ms / 1_000:g} s"
    return f"a checkpoint every {every}, {mode}, kept {where}"


def _attempt(event: AttemptStarted) -> str:
    start = _from(event.restored_checkpoint)
    note = f" ({event.note})" if event.note else ""
    return f"attempt {event.attempt} starts from {start}{note}"


def _from(checkpoint_id: CheckpointId | None) -> str:
    return "the beginning" if checkpoint_id is None else f"checkpoint {checkpoint_id}"


def _settled(event: CheckpointSettled, record: CheckpointRecord | None) -> Line:
    acked = "" if record is None else f"{len(record.acks)}/{len(record.triggered.expected)}"
    took = formats.duration(event.duration_ms)
    noun = _noun(record)
    if event.failure is not None:
        cause = f": {gist(event.cause)}" if event.cause else ""
        counts = f"; {acked} acknowledged{_missing(record)}" if acked else ""
        return Line(
            f"{noun} {event.checkpoint_id} {event.status} after {took}: "
            f"{event.failure}{cause}{counts}"
        )
    text = f"{noun} {event.checkpoint_id} completed in {took}"
    lasts = noun != "checkpoint"  # A savepoint was requested: its line stays.
    if record is None:
        return Line(f"{text}: state {formats.size(event.state_size)}", lasts)
    longest = max((ack.metrics.alignment_ms for ack in record.acks.values()), default=0.0)
    slowest = slowest_channel(record.acks.values())
    channel = "" if slowest is None else f" ({slowest.receiver} from {slowest.upstream})"
    return Line(
        f"{text}: {acked} acknowledged, alignment {formats.duration(longest)} max{channel}, "
        f"state {formats.size(event.state_size)}{_unaligned(record)}",
        lasts,
    )


def _unaligned(record: CheckpointRecord) -> str:
    """The records that barriers overtook, and when they began to; empty where none did."""
    overtaking = [ack.metrics for ack in record.acks.values() if ack.metrics.unaligned]
    if not overtaking:
        return ""
    size = sum(metrics.bytes_persisted_in_flight for metrics in overtaking)
    after_ms = min((m.switched_ms for m in overtaking if m.switched_ms is not None), default=None)
    after = "" if after_ms is None else f" after {formats.duration(after_ms)}"
    return f", unaligned{after}: {formats.size(size)} in flight"


def _noun(record: CheckpointRecord | None) -> str:
    if record is None or record.kind not in SAVEPOINT_KINDS:
        return "checkpoint"
    return "savepoint"


def _missing(record: CheckpointRecord | None) -> str:
    if record is None:
        return ""
    missing = [str(s) for s in record.triggered.expected if s not in record.acks]
    named = ", ".join(missing[:_MISSING_NAMED_MAX])
    more = len(missing) - _MISSING_NAMED_MAX
    if not missing:
        return ""
    return f", missing {named}" + (f" and {more} more" if more > 0 else "")


def _restored(event: Recovered) -> str:
    whole, local = formats.size(event.restored_bytes), event.restored_local_bytes
    if local is None:
        return whole
    return f"{whole}, {formats.size(local) if local else 'none'} of it from local copies"


def _recovered(event: Recovered) -> str:
    return (
        f"recovered in attempt {event.attempt} from {_from(event.restored_checkpoint)}: "
        f"backoff {formats.duration(event.backoff_ms)}, "
        f"redeploy {formats.duration(event.redeploy_ms)}, "
        f"restore {formats.duration(event.restore_ms)} ({_restored(event)}), "
        f"{event.replayed_records:,} records replayed"
    )
