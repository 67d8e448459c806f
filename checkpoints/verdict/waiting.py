"""The subtask that a checkpoint waits for, or waited for when it ended. Pure.

Most subtasks that have not acknowledged only wait for others: an alignment waits for the senders of
the barriers that are missing, a subtask without a barrier for all subtasks upstream that have sent
none. Walked from each to the one that it waits for, the walk ends at a *root*: a subtask that waits
for no other, or a channel whose sender has sent its barrier while the receiver has not got to it.
The worst root is the culprit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checkpoints.verdict.channels import against_channel, of_pressed_host
from checkpoints.verdict.facts import Aligning, Facts, Key, key_of, name_of, share
from checkpoints.verdict.overtaking import against_waiting
from checkpoints.verdict.result import Cause, Finding, LateChannel
from checkpoints.verdict.upstream_walk import WALK_MAX, Blame, Why, blame, lacking_slot
from checkpoints.verdict.wording import Tense, hop, of_blame
from controlplane.base.formatting import duration, listed, plural, rough_duration
from weir.protocol.lifecycle import SubtaskStatus

DOING_LISTED = 6  # Subtasks whose doing is listed; the others are counted.
SENDERS_NAMED = 3
_RUNS = (SubtaskStatus.RUNNING, SubtaskStatus.ENDED, SubtaskStatus.FINISHED)
_OF_SLOT = (
    Why.STUCK,
    Why.SILENT,
    Why.LOCKED,
)  # Reasons that all subtasks of a slot have in common.
_GRAVITY = {
    Why.STUCK: 5,
    Why.SILENT: 4,
    Why.BUSY: 3,
    Why.LOCKED: 3,
    Why.STARVED: 3,
    Why.NEIGHBOUR: 2,
    Why.UNKNOWN: 1,
    Why.IDLE: 0,
}


@dataclass(frozen=True, slots=True)
class _Root:
    """A subtask that keeps others waiting, and waits for none."""

    key: Key
    sender: Key | None  # Its barrier is on its way to ``key``; None: ``key`` itself is slow.
    way: tuple[Key, ...]  # From the subtask that waits to ``key``.


def waiting(facts: Facts, tense: Tense) -> Finding | None:
    """The subtask that holds the checkpoint up; None: no missing subtask is known."""
    if not facts.evidence.missing:
        return None
    roots = _roots(facts)
    judged = [(_blame(facts, root), root) for root in roots.values()]
    count: dict[Key, int] = {}
    for key in facts.evidence.missing:
        if (end := roots.get(key)) is not None:
            count[end.key] = count.get(end.key, 0) + 1
    ranked = sorted(
        judged,
        key=lambda item: (_GRAVITY[item[0].why], count.get(item[1].key, 0), _busy(item[0])),
        reverse=True,
    )
    worst, root = ranked[0]
    finding = _of_root(facts, worst, root, tense)
    if worst.why in (Why.IDLE, Why.UNKNOWN) and worst.key in _listed(facts):
        finding.because.clear()  # The list of the missing ones has it too; once is enough.
    chains = {worst.key[0]}
    for other, its_root in ranked[1:]:
        if worst.why in _OF_SLOT and (other.why, other.key[1]) == (worst.why, worst.key[1]):
            continue  # The same slot once more.
        if other.why is worst.why is Why.STARVED:
            continue  # Such slots are listed beside the worst.
        if _GRAVITY[other.why] >= _GRAVITY[Why.BUSY] and other.key[0] not in chains:
            chains.add(other.key[0])
            second = _of_root(facts, other, its_root, tense)
            finding.because.append(f"Also: {second.clause}.")
            finding.advice += second.advice
            finding.culprits += second.culprits
            break
    busy = f"{name_of(worst.key)} {share(_busy(worst))}"  # As in the list of its chain.
    is_told = any(busy in line for line in finding.because)
    finding.because += _doing(facts, tense, told=worst.key if is_told else None)
    return finding


def _busy(blamed: Blame) -> float:
    return blamed.rates.busy if blamed.rates else 0.0


def _roots(facts: Facts) -> dict[Key, _Root]:
    """The root of each subtask that has not acknowledged."""
    missing = set(facts.evidence.missing)
    missing_of: dict[str, list[Key]] = {}
    for key in facts.evidence.missing:
        missing_of.setdefault(key[0], []).append(key)
    return {key: _root(facts, key, missing, missing_of) for key in facts.evidence.missing}


def _root(facts: Facts, start: Key, missing: set[Key], missing_of: dict[str, list[Key]]) -> _Root:
    way = [start]
    while len(way) < WALK_MAX:
        at = way[-1]
        if _is_reason(facts, at):
            break
        senders = _waits_for(facts, at, missing_of)
        late = [s for s in senders if s in missing and s not in way]
        if late:
            way.append(max(late, key=lambda s: (_is_reason(facts, s), -s[1])))
            continue
        sent = [s for s in senders if s not in missing and _has_acknowledged(facts, s)]
        return _Root(at, sent[0] if sent else None, tuple(way))
    return _Root(way[-1], None, tuple(way))


def _has_acknowledged(facts: Facts, key: Key) -> bool:
    """Whether a subtask that is not among the missing ones kept is known to have acknowledged."""
    return key in facts.acks or facts.evidence.missing_count <= len(facts.evidence.missing)


def _is_reason(facts: Facts, key: Key) -> bool:
    seen = facts.evidence.subtasks.get(key)
    if facts.evidence.stall(key) is not None:
        return True
    if _is_writing(facts, key):
        return True
    return seen is not None and (seen.silent_ms is not None or seen.status not in _RUNS)


def _is_writing(facts: Facts, key: Key) -> bool:
    """Whether a receiver has its barrier: then its snapshot is taken and being written."""
    seen = facts.evidence.subtasks.get(key)
    return (seen is not None and seen.sent_on) or name_of(key) in facts.has_sent


def _waits_for(facts: Facts, key: Key, missing_of: dict[str, list[Key]]) -> list[Key]:
    seen = facts.evidence.subtasks.get(key)
    if seen is not None and seen.aligning is not None:
        return [key_of(name) for name in seen.aligning.missing]
    late: list[Key] = []
    for chain, partitioning in facts.upstream.get(key[0], ()):
        senders = missing_of.get(chain, [])
        late += [s for s in senders if partitioning != "forward" or s[1] == key[1]]
    return late


def _blame(facts: Facts, root: _Root) -> Blame:
    seen = facts.evidence.subtasks.get(root.key)
    if _is_writing(facts, root.key) and facts.evidence.stall(root.key) is None:
        rates = seen.rates if seen else None
        why = Why.UNKNOWN if rates is None else Why.IDLE
        idle = Blame(root.key, why, (root.key,), rates)
        return lacking_slot(facts, root.key, (root.key,)) or idle
    blamed, sender = blame(facts, root.key), root.sender
    if sender is not None and blamed.why in (Why.IDLE, Why.UNKNOWN):
        # It took its snapshot and could not run to send the barrier on.
        return lacking_slot(facts, sender, (root.key, sender)) or blamed
    return blamed


def _of_root(facts: Facts, blamed: Blame, root: _Root, tense: Tense) -> Finding:
    name = name_of(root.key)
    finding = of_blame(facts, blamed, tense)
    if root.sender is not None and not finding.clause:
        finding = of_pressed_host(facts, root.sender, root.key, tense) or finding
        finding.cause = finding.cause or Cause.CHANNEL
    if root.sender is not None:
        sender = name_of(root.sender)
        finding.channel = LateChannel(sender, name, "not arrived")
        late = f"the barrier that {sender} sent {tense.has} not reached {name}"
        finding.clause = f"{finding.clause}; {late}" if finding.clause else late
        finding.culprits = finding.culprits or [sender, name]
    elif len(root.way) > 1:
        finding.channel = LateChannel(name, name_of(root.way[-2]), "not arrived")
    if not finding.clause:
        finding.clause = _of_state(facts, root.key, tense)
        finding.culprits = finding.culprits or [name]
    if blamed.why in (Why.BUSY, Why.NEIGHBOUR):
        finding.advice += against_waiting(facts, root.key)
    finding.advice = finding.advice or _advice(facts, root)
    keys = dict.fromkeys([*root.way, *blamed.way])
    finding.path = [hop(facts, key) for key in keys]
    return finding


def _of_state(facts: Facts, key: Key, tense: Tense) -> str:
    name, seen = name_of(key), facts.evidence.subtasks.get(key)
    if _is_writing(facts, key):
        return f"{name} {tense.has} sent its barrier on and {tense} writing its snapshot"
    if seen is not None and seen.status not in _RUNS:
        return f"{name} {tense} in status {seen.status.value}"
    return f"{name} {tense} the first subtask that {tense.has} not acknowledged"


def _advice(facts: Facts, root: _Root) -> list[str]:
    if _is_writing(facts, root.key):
        return [
            "Look at the checkpoint storage's latency and throughput from slot "
            f"{root.key[1]}{facts.slot(root.key).text}."
        ]
    if root.sender is not None:
        return against_channel(facts, root.sender, root.key)
    return [
        f"See what {facts.label(root.key[0])} does in slot {root.key[1]}"
        f"{facts.slot(root.key).text}: look at its log and its processor time."
    ]


# What each missing subtask was doing --------------------------------------------------------------


def _aligns(facts: Facts, key: Key) -> bool:
    seen = facts.evidence.subtasks.get(key)
    return seen is not None and seen.aligning is not None


def _listed(facts: Facts) -> Sequence[Key]:
    """The missing subtasks whose doing is listed."""
    return facts.evidence.missing[:DOING_LISTED]


def _doing(facts: Facts, tense: Tense, told: Key | None) -> list[str]:
    listed_ones = _listed(facts)
    lines = [
        f"{name_of(key)}: {doing(facts, key, tense)}."
        for key in listed_ones
        if key != told or _aligns(facts, key)
    ]
    rest = facts.evidence.missing_count - len(listed_ones)
    if rest > 0:
        lines.append(f"{plural(rest, 'more subtask')} did not acknowledge either.")
    return lines


def doing(facts: Facts, key: Key, tense: Tense) -> str:
    """A clause on what one subtask that has not acknowledged is or was doing."""
    seen = facts.evidence.subtasks.get(key)
    if (stall := facts.evidence.stall(key)) is not None:
        return f"stuck in one call for {duration(stall.stalled_ms)}"
    if seen is None:
        return "no report of what it did"
    if seen.status not in _RUNS:
        return seen.status.value
    if seen.silent_ms is not None:
        return f"reported nothing for {rough_duration(seen.silent_ms)}"
    if _is_writing(facts, key):
        return "its barrier is sent on; it writes its snapshot"
    parts = []
    if (aligning := seen.aligning) is not None:
        parts.append(f"aligning for {duration(aligning.waited_ms)}{_without(aligning)}")
    elif facts.upstream.get(key[0]):
        parts.append("no alignment reported")
    parts.append(seen.rates.known if seen.rates else "its busy share was not reported")
    return ", ".join(parts)


def _without(aligning: Aligning) -> str:
    """The senders whose barriers are missing, in words; none, once the last one has come."""
    shown = list(aligning.missing[:SENDERS_NAMED])
    shown += [""] * max(0, aligning.missing_count - len(shown))
    if not shown:
        return ""
    if len(shown) == 1:
        return f", without the barrier of {shown[0]}"
    return f", without the barriers of {listed(shown, SENDERS_NAMED)}"


def names(keys: Iterable[Key], count: int, at_most: int) -> str:
    """The first names, and how many more there are."""
    shown = [name_of(key) for key in keys][:at_most]
    return listed(shown + [""] * max(0, count - len(shown)), at_most)
