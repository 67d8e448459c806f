"""The verdict on a checkpoint that failed or was aborted, in the words of its cause. Pure."""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoints.verdict.facts import Facts, key_of, name_of
from checkpoints.verdict.result import Cause, Finding, Verdict
from checkpoints.verdict.stacks import error
from checkpoints.verdict.waiting import names, waiting
from checkpoints.verdict.wording import AGAINST_FROZEN, Tense, hop, of_stall
from controlplane.base.formatting import duration, number, plural
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason
from weir.protocol.slot_memory import KILLED_FOR_MEMORY

MISSING_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Reason:
    """A reason in plain words, and what to do; ``{noun}``: checkpoint or savepoint."""

    text: str
    advice: str


_NOTHING_LOST = "Nothing is lost: the next checkpoint covers the same records."
_READ_AGAIN = "Nothing is lost: the sources read on from what the job restored."
_REASONS: Mapping[FailureReason, _Reason] = {
    FailureReason.IO_EXCEPTION: _Reason(
        "reading or writing failed",
        "Look at the checkpoint storage: its space, its permissions, its connection.",
    ),
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION: _Reason(
        "the state could not be written",
        "Look at the checkpoint storage as the subtask's host sees it: space, permissions, "
        "connection.",
    ),
    FailureReason.CHECKPOINT_DECLINED: _Reason(
        "a subtask declined the {noun}",
        "Read the subtask's own words for why, and its log for the rest.",
    ),
    FailureReason.FINALIZE_CHECKPOINT_FAILURE: _Reason(
        "the manifest could not be written",
        "The driver writes the manifest: look at the checkpoint storage as the driver sees it.",
    ),
    FailureReason.CHECKPOINT_SUBSUMED: _Reason(
        "a newer checkpoint completed first",
        "Nothing to do: the newer checkpoint covers it. If that happens often, allow fewer at a "
        "time.",
    ),
    FailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY: _Reason(
        "a subtask was not ready for the {noun}",
        f"Nothing to do while the job starts. {_NOTHING_LOST}",
    ),
    FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING: _Reason(
        "a subtask was closing", f"Nothing to do while the job ends. {_NOTHING_LOST}"
    ),
    FailureReason.CHECKPOINT_DECLINED_SUBSUMED: _Reason(
        "a newer barrier arrived at a subtask first",
        "Checkpoints follow one another faster than they align: take them less often.",
    ),
    FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER: _Reason(
        "a subtask upstream aborted the {noun}",
        "See why in the log of the subtask upstream and in the exceptions of the job.",
    ),
    FailureReason.CHECKPOINT_COORDINATOR_SUSPEND: _Reason(
        "checkpoints were suspended", f"Nothing to do. {_NOTHING_LOST}"
    ),
    FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN: _Reason(
        "the job failed while the {noun} was under way",
        "Look at the exceptions of the job: the {noun} is their victim, not their cause.",
    ),
    FailureReason.PERIODIC_SCHEDULER_SHUTDOWN: _Reason(
        "periodic checkpoints were switched off", "Nothing to do."
    ),
    FailureReason.JOB_FAILOVER: _Reason(
        "the job failed while the {noun} was under way",
        "Look at the exception: the {noun} is its victim, not its cause.",
    ),
    FailureReason.TASK_FAILURE: _Reason(
        "a subtask failed while the {noun} was under way",
        "Look at the exception: the {noun} is its victim, not its cause.",
    ),
    FailureReason.CONTROL_PLANE_AWAY: _Reason(
        "the driver could not reach the control plane before the {noun} timed out",
        "Look at the control plane and at the driver's connection to it; the job itself goes on.",
    ),
    FailureReason.JOB_FINISHED: _Reason(
        "the job finished while the {noun} was under way",
        "Nothing to do: all input is processed, and its output is committed.",
    ),
    FailureReason.JOB_CANCELED: _Reason(
        "the job was cancelled while the {noun} was under way",
        "Nothing to do: what had completed before is kept as the job's retention says.",
    ),
    FailureReason.JOB_STOPPED: _Reason(
        "the job was stopped while the {noun} was under way",
        "Nothing to do: the savepoint that the job was stopped with covers the same records.",
    ),
    FailureReason.JOB_RESTARTED: _Reason(
        "the job was restarted while the {noun} was under way", f"Nothing to do. {_READ_AGAIN}"
    ),
    FailureReason.JOB_RESCALED: _Reason(
        "the job was rescaled while the {noun} was under way", f"Nothing to do. {_READ_AGAIN}"
    ),
    FailureReason.JOB_ROLLED_BACK: _Reason(
        "the job was rolled back while the {noun} was under way", f"Nothing to do. {_READ_AGAIN}"
    ),
    FailureReason.CONTROL_PLANE_STOPPED: _Reason(
        "the control plane was stopped while the {noun} was under way",
        f"Nothing to do. {_READ_AGAIN}",
    ),
}
_OTHER = _Reason("the {noun} ended before it completed", _NOTHING_LOST)
_LOST_WITH_MANIFEST = _Reason(
    "the driver was lost before it had reported the manifest as written",
    f"See why the driver was lost, in the job's exceptions and its log. {_NOTHING_LOST}",
)
_OF_ATTEMPT = (FailureReason.JOB_FAILOVER, FailureReason.TASK_FAILURE)

# How the driver's words for the end of an attempt begin, where it was not a subtask's function.
_SLOT = re.compile(r"(?:the worker process of )?slot (?P<index>\d+)\b")
_TEMPLATE = re.compile(r"the template process of this slot died with exit code (?P<code>-?\d+)")
_FROZEN = re.compile(r"\bfrozen\b")
_HANGS = re.compile(r"made no progress for \d+ ms; it hangs")
_DRIVER_SILENT = re.compile(r"driver \d+ was silent for ")
_ATTEMPT_ENDED = re.compile(r"attempt \d+ ended before the command to write its manifest")
_DRIVER_LOST = re.compile(r"\bdriver was lost before\b")
_DRIVER_ENDED = re.compile(
    r"the driver's process \d+ ended(?:, killed by (?P<signal>SIG\w+)| with exit code \d+)?"
)
_CHECKPOINT = re.compile(rf"(?:{'|'.join(CheckpointKind)}) (?P<number>\d+) failed\b")
_SIGNAL = re.compile(r"killed by signal (?P<number>\d+)\b")
_NATIVE_CRASH = (
    "That is a crash in native code: look at the extension modules that the functions of this slot "
    "call, and at the last output of the process."
)
_OUT_OF_MEMORY = (
    "Give the container of the slots more memory, or fewer slots. With a limit for each slot "
    "(taskmanager.memory.process.size) a worker process ends before the kernel kills it, and names "
    "the states that take the memory."
)
_SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: (
        "If the process was not killed by hand, the kernel killed it because memory ran out: see "
        "the kernel's log on that host. Give the slots more memory, or spread the state over more "
        "of them."
    ),
    **dict.fromkeys((signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV), _NATIVE_CRASH),
}


def judge(facts: Facts) -> Verdict:
    """The verdict on a failed or aborted checkpoint."""
    times = facts.times
    if times.reason is FailureReason.CHECKPOINT_EXPIRED:
        return _expired(facts)
    reason = _OTHER if times.reason is None else _REASONS.get(times.reason, _OTHER)
    cause = times.cause
    if times.reason in _OF_ATTEMPT:
        cause = times.attempt_cause or cause
    if times.lost_driver and _DRIVER_LOST.search(cause):  # Not for what it wrote to.
        reason, cause = _LOST_WITH_MANIFEST, times.lost_driver
    elif times.attempt_cause and _ATTEMPT_ENDED.match(cause):
        reason, cause = _REASONS[FailureReason.JOB_FAILOVER], times.attempt_cause
    finding = _of_cause(facts, cause)
    headline = _capital(reason.text.format(noun=times.noun))
    if finding.clause:
        headline += f": {finding.clause}"
    elif times.reason in _OF_ATTEMPT:
        headline += "; no cause was reported"
    finding.advice = [*finding.advice, reason.advice.format(noun=times.noun)]
    because = [_progress(facts)]
    if times.reason is FailureReason.CONTROL_PLANE_AWAY:
        late = waiting(facts, Tense.PAST)
        finding.because += late.because if late else []
    tone = "idle" if times.status is CheckpointStatus.ABORTED else "bad"
    return finding.verdict(tone, _stopped(headline), because)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _stopped(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _of_cause(facts: Facts, cause: str) -> Finding:
    """The finding in the cause's own words, with the subtask that they begin with."""
    first, _, rest = cause.strip().partition("\n")
    if not first:
        return Finding("")
    is_full = "Errno 28" in cause or "No space left" in cause
    subtask, said = _subtask(facts, first)
    text = error("\n".join(filter(None, [said, rest])))
    stack = cause.strip() if rest.strip() else ""
    if subtask is None:
        if _SLOT.match(first):
            text = first  # The last output of the process is shown below.
        finding = _of_process(facts, cause, Finding(text, stack=stack))
        if is_full and facts.times.reason not in _OF_ATTEMPT:
            finding.advice.append("Free space in the checkpoint storage.")
        return finding
    key = key_of(subtask)
    finding = Finding(f"{subtask}: {text}" if text else subtask, culprits=[subtask], stack=stack)
    finding.because.append(
        f"{subtask} ({facts.label(key[0])}) ran in slot {key[1]}{facts.slot(key).text}."
    )
    finding.path = [hop(facts, key)]
    if is_full:
        finding.advice.append(f"Free space where slot {key[1]}{facts.slot(key).text} writes.")
    return finding


def _subtask(facts: Facts, first: str) -> tuple[str | None, str]:
    """The subtask that a cause begins with (``x-1: why``, ``x-1 failed``), and the rest."""
    for separator in (": ", ":", " failed", ""):
        name, matched, rest = first.partition(separator) if separator else (first, "", "")
        if separator and not matched:
            continue
        chain, _, index = name.strip().rpartition("-")
        if index.isdigit() and (chain in facts.by_uid or (not facts.operators and chain)):
            return name.strip(), rest.strip()
    return None, first


def _of_process(facts: Facts, cause: str, finding: Finding) -> Finding:
    """The finding with what follows from the slot, signal or checkpoint in the cause."""
    cause = cause.strip()
    if slot := _SLOT.match(cause):
        index = int(slot["index"])
        chains = facts.parallelism.items()
        finding.culprits = [name_of((chain, index)) for chain, count in chains if index < count]
        if finding.culprits:
            where = facts.slot(("", index)).text
            finding.because.append(f"Slot {index}{where} ran {', '.join(finding.culprits)}.")
        _of_hang(facts, index, cause, finding)
    _of_driver(cause, finding)
    killed_by = 0
    if template := _TEMPLATE.search(cause):  # Its children are ended with it.
        killed_by = -int(template["code"])
    elif sent := _SIGNAL.search(cause.partition("\n")[0]):
        killed_by = int(sent["number"])
    if (ended := _DRIVER_ENDED.match(cause)) and (name := ended["signal"]):
        killed_by = signal.Signals[name]
    if KILLED_FOR_MEMORY in cause.partition("\n")[0]:
        finding.advice.append(_OUT_OF_MEMORY)
    elif advice := _SIGNALS.get(killed_by):
        finding.advice.append(advice)
    if failed := _CHECKPOINT.match(cause):
        finding.advice.append(
            f"See the verdict on checkpoint {failed['number']} for why it failed."
        )
    return finding


def _of_hang(facts: Facts, index: int, cause: str, finding: Finding) -> None:
    """Add what is known of a slot whose process stood still: it was frozen, or in one call."""
    first = cause.partition("\n")[0]
    if _FROZEN.search(first):
        finding.cause = Cause.FROZEN
        finding.advice.append(
            f"Look at the process of slot {index}{facts.slot(('', index)).text}: {AGAINST_FROZEN}."
        )
    if not _HANGS.search(first):
        return
    finding.cause = Cause.STUCK
    for key, stall in facts.evidence.stalled.items():
        if key[1] == index:
            stuck = of_stall(facts, key, stall, Tense.PAST)
            finding.clause += f": {stuck.clause}"
            finding.culprits = [*stuck.culprits, *finding.culprits]
            finding.because += stuck.because
            finding.advice += stuck.advice
            finding.stack = stuck.stack
            finding.path = [hop(facts, key)]
            return
    finding.advice.append(
        "No stack of that call was reported, so it is probably in C and keeps Python's interpreter "
        "lock: py-spy dump --native shows it while it lasts."
    )


def _of_driver(cause: str, finding: Finding) -> None:
    """Add what follows from the end or the silence of the driver."""
    if _DRIVER_SILENT.match(cause):
        finding.cause = Cause.FROZEN
        finding.culprits = ["driver"]
        finding.advice.append(
            f"Look at the driver's process: {AGAINST_FROZEN}; and at its connection to the control "
            "plane. Its log ends where it stood still."
        )
    elif ended := _DRIVER_ENDED.match(cause):
        finding.cause = Cause.DRIVER
        finding.culprits = ["driver"]
        if ended["signal"] is None:
            finding.advice.append("Read the last lines of the driver's log: they say why it ended.")


def _progress(facts: Facts) -> str:
    times = facts.times
    return (
        f"{number(times.acknowledged_count)} of {plural(times.subtask_count, 'operator subtask')} "
        f"had acknowledged when the {times.noun} ended after {duration(times.elapsed_ms)}."
    )


def _expired(facts: Facts) -> Verdict:
    times, evidence = facts.times, facts.evidence
    after = f"Timed out after {duration(times.elapsed_ms)}"
    finding = waiting(facts, Tense.PAST)
    if finding is None:
        missing = max(0, times.subtask_count - times.acknowledged_count)
        return Verdict(
            "bad",
            f"{after}: {plural(missing, 'operator subtask')} of {number(times.subtask_count)} "
            "never acknowledged.",
            because=("What those subtasks were doing at that time was not kept.",),
            advice=("Look at the next checkpoint while it is under way, and at the job's logs.",),
        )
    who = names(evidence.missing, evidence.missing_count, MISSING_NAMED)
    count = plural(evidence.missing_count, "subtask")
    headline = f"{after} because {finding.clause}; {count} never acknowledged: {who}."
    finding.advice.append(
        "A longer timeout only helps if such checkpoints complete in the end; until then they hold "
        "up what sinks commit."
    )
    return finding.verdict("bad", headline, [_progress(facts)])
