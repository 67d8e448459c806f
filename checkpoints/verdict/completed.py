"""The verdict on a completed checkpoint: why it took as long as it did. Pure.

The time of a checkpoint is that of the subtask that was last: the barrier's way to it (start delay,
then alignment), the copy of its state on the loop (sync), the writing (async). The rest is the
acknowledgement's way to the coordinator, and the manifest. The longest part is explained; the
others are numbers below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from checkpoints.verdict.causes import (
    OUTLIER_FACTOR,
    OwnPart,
    own_part,
    siblings_middle,
    writing,
)
from checkpoints.verdict.channels import against_channel, of_pressed_host
from checkpoints.verdict.facts import Ack, Facts, Key, Stall, Times, name_of, share
from checkpoints.verdict.overtaking import against_waiting
from checkpoints.verdict.result import Cause, Finding, Verdict
from checkpoints.verdict.starvation import CPU_WAIT_SHARE, cpu_wait, is_locked_out, is_starved
from checkpoints.verdict.upstream_walk import (
    TOGETHER_MS,
    Blame,
    Hop,
    Why,
    blame,
    lacking_slot,
    trace,
)
from checkpoints.verdict.wording import (
    Tense,
    hop,
    of_blame,
    of_channel,
    of_driver,
    of_lock,
    of_stall,
    of_starvation,
    of_step,
    of_two,
)
from controlplane.base.formatting import duration, interval, number, size

# Beyond half of its interval a checkpoint leaves the job little time without one, and one that is a
# bit slower makes the next one wait.
CALM_INTERVAL_SHARE = 0.5
# Blocked channels and a loop that copies stand still: a second of that delays every result.
FELT_MS = 1_000.0
CALM_WITHOUT_INTERVAL_MS = 10_000.0  # Of checkpoints taken on request: none waits for them.
UNUSUAL_FACTOR = 3.0  # Against the median of those before it; noise is below.
# A second culprit is named if it cost at least a quarter of what the first one did.
SECOND_SHARE = 0.25
# A call that held a loop for a third of the checkpoint's time made it long.
STALL_SHARE = 1 / 3
ALIKE_SHARE = 0.5  # Of the latest source's delay: no source is apart from the others.
LIKE_SHARE = 0.9  # About as late: one thread writes for a slot, so its snapshots end together.


class Part(StrEnum):
    """The parts of a checkpoint's time; the values are the words for them."""

    TRAVEL = "waiting for barriers"
    SYNC = "copying state"
    ASYNC = "writing state"
    REPORT = "reporting the acknowledgements"
    FINALIZE = "writing the manifest"


def judge(facts: Facts) -> Verdict:
    """The verdict on a completed checkpoint."""
    if not facts.acks:
        return _without_details(facts.times)
    facts = _of_its_time(facts)
    last = max(facts.acks, key=lambda key: (facts.acks[key].total_ms, key))
    parts = _parts(facts.times, facts.acks, facts.acks[last])
    longest = max(parts, key=lambda part: parts[part])
    finding = _stalled(facts) or _explained(facts, last, longest, parts[longest])
    is_slow = _is_slow(facts.times, parts, facts.acks[last]) or bool(finding.stack)
    numbers = [_numbers(facts, last, parts), *_compared(facts.times)]
    if not is_slow:
        headline = _calm(facts.times, longest, parts[longest], finding)
        if longest is not Part.TRAVEL or finding.channel is None:  # Nothing was slow.
            finding = Finding("", channel=finding.channel)
        finding.advice = []
        return finding.verdict("good", headline, numbers)
    return finding.verdict("warn", f"{_capital(finding.clause)}.", numbers)


def _of_its_time(facts: Facts) -> Facts:
    """The facts without stalls that began when all of their slot had acknowledged already."""
    done_ms = _done_ms(facts)
    later = {k for k, s in facts.evidence.stalled.items() if s.since_ms >= done_ms.get(k[1], inf)}
    if not later:
        return facts
    seen = facts.evidence.subtasks
    evidence = replace(
        facts.evidence,
        stalls={k: stall for k, stall in facts.evidence.stalls.items() if k not in later},
        subtasks={k: replace(s, stall=None) if k in later else s for k, s in seen.items()},
    )
    return replace(facts, evidence=evidence)


def _done_ms(facts: Facts) -> dict[int, int]:
    """The time of each slot's last acknowledgement."""
    done_ms: dict[int, int] = {}
    for (_, index), ack in facts.acks.items():
        done_ms[index] = max(done_ms.get(index, 0), ack.acknowledged_at_ms)
    return done_ms


def _parts(times: Times, acks: Mapping[Key, Ack], last: Ack) -> dict[Part, float]:
    heard_at_ms = max(ack.acknowledged_at_ms for ack in acks.values())
    heard_ms = min(float(heard_at_ms - times.triggered_at_ms), times.elapsed_ms)
    return {
        Part.TRAVEL: last.left_ms,
        Part.SYNC: last.sync_ms,
        Part.ASYNC: last.async_ms,
        Part.REPORT: max(0.0, heard_ms - last.total_ms),
        Part.FINALIZE: max(0.0, times.elapsed_ms - max(heard_ms, last.total_ms)),
    }


def _is_slow(times: Times, parts: dict[Part, float], last: Ack) -> bool:
    took = times.elapsed_ms
    if took < FELT_MS and not (times.interval_ms and took > times.interval_ms):
        return False  # Too short to be felt, unless the next one waits for it.
    if max(last.alignment_ms, last.start_delay_ms, parts[Part.SYNC]) >= FELT_MS:
        return True
    if times.interval_ms is None:
        return took >= CALM_WITHOUT_INTERVAL_MS
    if times.typical_ms and took >= UNUSUAL_FACTOR * times.typical_ms:
        return True
    return took >= CALM_INTERVAL_SHARE * times.interval_ms


def _calm(times: Times, longest: Part, longest_ms: float, finding: Finding) -> str:
    took = times.elapsed_ms
    text = f"All is well: the {times.noun} took {duration(took)}"
    if times.interval_ms:
        text += f", {share(took / times.interval_ms)} of its interval of "
        text += interval(times.interval_ms)
    whole = f"{share(longest_ms / took)} of its time" if took else "most of its time"
    text += f"; {whole} went into {longest.value}"
    if longest is Part.TRAVEL and finding.channel is not None:
        text += f", most of all for the one {_of_late(finding)}"
    return f"{text}."


def _of_late(finding: Finding) -> str:
    assert finding.channel is not None
    return f"from {finding.channel.sender} to {finding.channel.receiver} ({finding.channel.text})"


def _capital(text: str) -> str:
    """The text with a capital at its start; names of operators keep their own letters."""
    first, _, rest = text.partition(" ")
    return f"{first.capitalize()} {rest}" if first.isalpha() else text


def _numbers(facts: Facts, last: Key, parts: dict[Part, float]) -> str:
    ack = facts.acks[last]
    text = (
        f"The {facts.times.noun} took {duration(facts.times.elapsed_ms)}. {name_of(last)} was "
        f"last: start delay {duration(ack.start_delay_ms)}, alignment "
        f"{duration(ack.alignment_ms)}, sync {duration(ack.sync_ms)}, async "
        f"{duration(ack.async_ms)}"
    )
    for part in (Part.REPORT, Part.FINALIZE):
        if parts[part] >= TOGETHER_MS:
            text += f", {part.value} {duration(parts[part])}"
    if facts.times.in_flight_bytes:
        text += f"; {size(facts.times.in_flight_bytes)} of records that barriers overtook were kept"
    return f"{text}."


def _compared(times: Times) -> list[str]:
    if times.typical_ms and times.elapsed_ms >= UNUSUAL_FACTOR * times.typical_ms:
        return [
            f"Half of the completed checkpoints before it took {duration(times.typical_ms)} "
            "or less."
        ]
    return []


def _explained(facts: Facts, last: Key, longest: Part, longest_ms: float) -> Finding:
    match longest:
        case Part.TRAVEL:
            return _of_travel(facts, last)
        case Part.SYNC:
            finding = _of_copying(facts)
        case Part.ASYNC:
            finding = _of_writing(facts, _last_written(facts))
        case Part.REPORT:
            finding = _of_reporting(facts, last, longest_ms)
        case Part.FINALIZE:
            finding = _of_manifest(facts, longest_ms)
    travel = _of_travel(facts, last)
    if travel.channel is not None:  # Worth seeing also where another part was longest.
        finding.because.append(f"The latest barrier was the one {_of_late(travel)}.")
        finding.channel = travel.channel
    return finding


# A stuck function ---------------------------------------------------------------------------------


def _stalled(facts: Facts) -> Finding | None:
    """The longest stall, if the checkpoint would have been short without it."""
    done_ms = _done_ms(facts)
    for key, stall in facts.evidence.stalled.items():
        held_ms = _overlap_ms(facts.times, stall, done_ms.get(key[1], inf))
        if held_ms >= STALL_SHARE * facts.times.elapsed_ms:
            finding = of_stall(facts, key, stall, Tense.PAST)
            finding.path = [hop(facts, key)]
            last = max(facts.acks, key=lambda k: facts.acks[k].total_ms)
            if (worst := _worst(facts, last)) is not None:
                finding.channel = of_step(worst.channel)
                finding.because.append(
                    f"{_capital(of_channel(finding.channel, worst.channel, ()))}."
                )
            return finding
    return None


def _overlap_ms(times: Times, stall: Stall, done_ms: float) -> float:
    """For how long a stall held up a slot that the checkpoint waited for."""
    end = min(times.triggered_at_ms + times.elapsed_ms, done_ms)
    return min(stall.since_ms + stall.stalled_ms, end) - max(stall.since_ms, times.triggered_at_ms)


# The barriers' way --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Worst:
    """The hop on which a barrier spent most of its time."""

    hop: Hop
    channel: Hop  # On which others waited for it: that hop, or one further down.
    way: tuple[Key, ...]  # From that channel's receiver to the hop's, upstream.
    blame: Blame


def _of_travel(facts: Facts, last: Key) -> Finding:
    worst = _worst(facts, last)
    if worst is None:
        return _of_start(facts, last)
    channel = of_step(worst.channel)
    finding = of_blame(facts, worst.blame, Tense.PAST)
    if finding.clause:
        if others := _others(facts, last, worst):
            finding = of_two(finding, of_blame(facts, others[0], Tense.PAST), Tense.PAST)
        if worst.blame.why in (Why.BUSY, Why.NEIGHBOUR):
            finding.advice += against_waiting(facts, worst.hop.receiver)
        named = () if worst.blame.why is Why.STARVED else finding.culprits
        clause = of_channel(channel, worst.channel, named)
        finding.clause = f"{finding.clause}; {clause}"
    else:
        came = "was" if worst.channel.is_all else "came"
        finding.clause = (
            f"the channel {channel.sender} → {channel.receiver} held the barrier: it {came} "
            f"{channel.text}"
        )
        finding.cause = Cause.CHANNEL
        finding.advice += against_channel(facts, worst.hop.sender, worst.hop.receiver)
        finding.culprits = [channel.sender, channel.receiver]
        pressed = of_pressed_host(facts, worst.hop.sender, worst.hop.receiver, Tense.PAST)
        if pressed is not None:
            clause = of_channel(channel, worst.channel, ())
            pressed.clause = f"{pressed.clause}; {clause}"
            pressed.because += finding.because
            finding = pressed
    if worst.channel != worst.hop and worst.hop.transit_ms >= TOGETHER_MS:
        finding.because.append(
            f"The barrier waited {duration(worst.hop.transit_ms)} in front of "
            f"{name_of(worst.hop.receiver)}, which therefore sent its own barriers late."
        )
    blocked = _blocked_ms(facts, worst.channel.receiver)
    if blocked >= TOGETHER_MS:
        finding.because.append(
            f"Meanwhile other channels of {channel.receiver} were blocked for up to "
            f"{duration(blocked)}."
        )
    finding.channel = channel
    keys = dict.fromkeys([*worst.way, *worst.blame.way])
    finding.path = [hop(facts, key) for key in keys]
    return finding


def _worst(facts: Facts, last: Key) -> _Worst | None:
    """The hop with the greatest transit on the way to ``last``; None: no barrier was late."""
    hops = trace(facts, last)
    if not hops:
        return None
    at = max(range(len(hops)), key=lambda i: hops[i].transit_ms)
    worst = hops[at]
    if worst.transit_ms < max(TOGETHER_MS, _source_delay_ms(facts, hops)):
        return None
    blamed = blame(facts, worst.receiver)
    has_no_culprit = blamed.why in (Why.IDLE, Why.UNKNOWN)
    shown = at
    if worst.own_ms < worst.transit_ms / 2 and not (worst.is_alone and has_no_culprit):
        # All barriers were late there: the subtasks that waited for one are further down.
        shown = max(
            (i for i in range(at) if hops[i].arrived_ms >= worst.transit_ms / 2), default=at
        )
    is_held = facts.evidence.stall(worst.sender) or lacking_slot(facts, worst.sender, ())
    if has_no_culprit and is_held:
        blamed = blame(facts, worst.sender)  # Its loop stood before the barrier was on its way.
    way = tuple(hops[i].receiver for i in range(shown, at + 1))
    if blamed.key == worst.sender or (has_no_culprit and shown == at):
        way = (*way, worst.sender)
    return _Worst(worst, hops[shown], way, blamed)


def _source_delay_ms(facts: Facts, hops: list[Hop]) -> float:
    source = facts.acks.get(hops[-1].sender)
    return source.start_delay_ms if source else 0.0


def _others(facts: Facts, last: Key, worst: _Worst) -> list[Blame]:
    """Other operators that caused a part of the delay, the largest part first."""
    costs: dict[str, tuple[float, Blame]] = {}
    for end in _ends(facts, last):
        for step in trace(facts, end):
            if step.transit_ms < SECOND_SHARE * worst.hop.transit_ms:
                continue
            other = blame(facts, step.receiver)
            chain = other.key[0]
            if other.why in (Why.IDLE, Why.UNKNOWN) or chain == worst.blame.key[0]:
                continue
            if other.why is worst.blame.why and _is_told(worst.blame, other):
                continue
            if chain not in costs or costs[chain][0] < step.transit_ms:
                costs[chain] = step.transit_ms, other
    return [other for _, other in sorted(costs.values(), key=lambda item: -item[0])]


def _is_told(worst: Blame, other: Blame) -> bool:
    """Whether the words for the worst tell of another one that has the same reason."""
    if worst.why is Why.STARVED:
        return True  # The same host, or one that is told beside it.
    return worst.why is Why.LOCKED and worst.key[1] == other.key[1]


def _ends(facts: Facts, last: Key) -> list[Key]:
    """``last``, and the last subtask of every chain that sends to no other."""
    ends = {last[0]: last}
    for key, ack in facts.acks.items():
        if facts.downstream.get(key[0]) or key[0] == last[0]:
            continue
        if key[0] not in ends or facts.acks[ends[key[0]]].total_ms < ack.total_ms:
            ends[key[0]] = key
    return list(ends.values())


def _blocked_ms(facts: Facts, receiver: Key) -> float:
    return max(
        (ms for gate in facts.gates.get(receiver, ()) for ms in gate.blocked_ms), default=0.0
    )


def _of_start(facts: Facts, last: Key) -> Finding:
    """The finding where no channel was late: a source began late, or nothing was late at all."""
    hops = trace(facts, last)
    source = hops[-1].sender if hops else last
    ack = facts.acks.get(source)
    delay = ack.start_delay_ms if ack else facts.acks[last].start_delay_ms
    if delay < TOGETHER_MS:
        return Finding("the barriers of all channels came together; nothing waited")
    finding = of_blame(facts, blame(facts, source), Tense.PAST)
    if not finding.clause and (count := _late_alike(facts, delay)) > 1:
        return _of_late_trigger(facts, delay, count)
    name = name_of(source)
    late = f"the source {name} took up the trigger only after {duration(delay)}"
    if not finding.clause:
        finding.cause = Cause.BUSY
    finding.clause = f"{finding.clause}; {late}" if finding.clause else late
    finding.culprits = finding.culprits or [name]
    finding.path = [hop(facts, source)]
    finding.advice = finding.advice or [
        f"Check whether slot {source[1]}{facts.slot(source).text} or the driver was short of "
        "processor time, and whether their clocks agree.",
    ]
    return finding


def _late_alike(facts: Facts, delay_ms: float) -> int:
    """The number of sources, if all of them took up the trigger about as late; else 0."""
    delays = [ack.start_delay_ms for key, ack in facts.acks.items() if not facts.upstream[key[0]]]
    return len(delays) if delays and min(delays) >= ALIKE_SHARE * delay_ms else 0


def _of_late_trigger(facts: Facts, delay_ms: float, count: int) -> Finding:
    """The finding where all sources were late alike: the driver sent the trigger late."""
    finding = of_driver(facts, Tense.PAST)
    late = (
        f"the driver sent the trigger late: all {number(count)} source subtasks took it up only "
        f"after {duration(delay_ms)}"
    )
    finding.clause = f"{finding.clause}; {late}" if finding.clause else late
    finding.advice = finding.advice or [
        "Look at the driver's process: its processor time, its memory and its log, and whether it "
        "was stopped for a while; then at its connection to the control plane, which triggers, and "
        "whether the clocks of driver and slots agree.",
    ]
    return finding


# Sync ---------------------------------------------------------------------------------------------


def _of_copying(facts: Facts) -> Finding:
    key = max(facts.acks, key=lambda k: facts.acks[k].sync_ms)
    ack, name = facts.acks[key], name_of(key)
    middle = siblings_middle(facts, key, "sync_ms")
    because = [f"{name} holds {size(ack.state_bytes)} of state."]
    if middle is not None and ack.sync_ms >= OUTLIER_FACTOR * max(middle, TOGETHER_MS):
        because.append(f"The median of its siblings is {duration(middle)}.")
    finding = Finding(
        f"{name} copied its state for {duration(ack.sync_ms)}, which held up its loop (sync part)",
        because=because,
        advice=[
            f"Look at what {facts.label(key[0])} does in its snapshot: user code, a flush to "
            "another system, or state kept as Python objects, which are copied one by one. Typed "
            "state is frozen at once.",
        ],
        path=[hop(facts, key)],
        culprits=[name],
        cause=Cause.COPYING,
    )
    return _in_slot(facts, key, finding)


def _in_slot(facts: Facts, key: Key, finding: Finding) -> Finding:
    """The finding with the slot in front that could not run; as it is, if the slot could."""
    if is_locked_out(facts, key):
        slot = of_lock(facts, key, Tense.PAST)
    elif is_starved(facts, key) and cpu_wait(facts, key[1]) >= CPU_WAIT_SHARE:
        slot = of_starvation(facts, key, Tense.PAST)
    else:
        return finding
    slot.clause = f"{slot.clause}; {finding.clause}"
    slot.because += finding.because
    slot.advice += finding.advice
    slot.path = finding.path or [hop(facts, key)]
    return slot


# Async --------------------------------------------------------------------------------------------


def _last_written(facts: Facts) -> Key:
    """The subtask whose snapshot was ready last; among those about as late, the largest."""
    longest = max(ack.async_ms for ack in facts.acks.values())
    late = [key for key, ack in facts.acks.items() if ack.async_ms >= LIKE_SHARE * longest]
    return max(late, key=lambda key: (facts.acks[key].written_bytes, facts.acks[key].async_ms))


def _of_writing(facts: Facts, key: Key) -> Finding:
    part = own_part(facts, key)
    if part is not None and part.operator.is_sink:
        return _in_slot(facts, part.key, _of_sink(facts, part))
    wrote, name = writing(facts, key), name_of(key)
    slot = f"slot {key[1]}{facts.slot(key).text}"
    how = f"{size(wrote.slot_bytes)} in {duration(wrote.async_ms)}, {size(wrote.bytes_per_s)}/s"
    finding = Finding("", culprits=[name], path=[hop(facts, key)], cause=Cause.STORAGE)
    finding.because = [
        f"{_capital(slot)} wrote {how}; all subtasks together {size(wrote.all_bytes)}."
    ]
    if wrote.others_async_ms is not None:
        speed = wrote.others_bytes_per_s
        finding.because.append(
            f"The median of the other slots is {duration(wrote.others_async_ms)}"
            + (f" at {size(speed)}/s." if speed else ".")
        )
    is_large = wrote.is_fast and not wrote.is_small
    if wrote.is_apart and not is_large:
        finding.clause = f"the storage was slow for {name} alone: its slot wrote {how} (async part)"
        finding.advice = [
            f"Look at the disk or the connection of {slot}; the other slots write faster."
        ]
        finding = _in_slot(facts, key, finding)
    elif is_large:
        finding.cause = Cause.LARGE
        finding.clause = f"the state is large: {name} and its slot wrote {how} (async part)"
        finding.advice = [
            "The storage keeps up; the size of the state takes the time. Expire old state, spread "
            "it over more slots, or take checkpoints less often."
        ]
        if wrote.is_apart:
            finding.advice.append(
                f"Slot {key[1]} wrote far more than the others: check whether a few keys hold most "
                "of the state."
            )
    else:
        finding = Finding(
            f"the checkpoint storage was slow: slot {key[1]} wrote {how} (async part)",
            because=finding.because,
            advice=[
                "Look at the checkpoint storage's latency and throughput, and at what else writes "
                "there."
            ],
            cause=Cause.STORAGE,
        )
        others = {index for _, index in facts.acks if index != key[1]}
        if is_starved(facts, key) and all(cpu_wait(facts, index) for index in others):
            return _in_slot(facts, key, finding)
        if others:
            finding.because.append("All slots waited alike, so the storage is slow, not one host.")
    return finding


def _of_sink(facts: Facts, part: OwnPart) -> Finding:
    """The finding on a sink whose files took long to write and sync."""
    place = f" in {part.operator.files}" if part.operator.files else ""
    took = duration(part.took_ms)
    finding = Finding(
        f"the storage of the sink {part.operator.name} was slow: {part.name} took {took} to write "
        f"and sync its output{place} (async part)",
        because=[
            "The time went into the sink's own files, not into the checkpoint storage, which got "
            f"{size(facts.acks[part.key].written_bytes)} of {name_of(part.key)}."
        ],
        advice=[
            f"Look at the latency and the free space of what the sink {part.operator.name} writes "
            f"to{place}, and at what else writes there."
        ],
        path=[hop(facts, part.key)],
        culprits=[name_of(part.key)],
        cause=Cause.SINK,
    )
    if part.others_ms is not None:
        others = f"The median of its siblings is {duration(part.others_ms)}"
        alone = f": look at slot {part.key[1]}{facts.slot(part.key).text} alone"
        alike = ": they wait alike, so the storage is slow, not one host"
        finding.because.append(f"{others}{alone if part.is_apart else alike}.")
    return finding


# The coordinator's part ---------------------------------------------------------------------------


def _of_reporting(facts: Facts, last: Key, took_ms: float) -> Finding:
    text = f"the acknowledgements took {duration(took_ms)} from the subtasks to the coordinator"
    if is_locked_out(facts, last):  # The thread that sends them waits for the lock as well.
        return _in_slot(facts, last, Finding(text))
    return _of_coordinator(
        facts,
        text,
        "Look at the driver and the control plane: their processor time, the connection between "
        "them, and whether the control plane was down meanwhile.",
    )


def _of_manifest(facts: Facts, took_ms: float) -> Finding:
    text = f"writing the manifest took {duration(took_ms)} after all subtasks had acknowledged"
    if facts.times.lost_driver:
        return _of_coordinator(
            facts,
            f"{text}, in which the driver was lost",
            "Look at why the driver ended, in the job's exceptions and the driver's log; the "
            "manifest that it was writing is settled when the next driver is there.",
        )
    return _of_coordinator(
        facts,
        text,
        "The driver writes the manifest to the checkpoint storage: look at the storage's latency, "
        "and at the driver's and the control plane's processor time.",
    )


def _of_coordinator(facts: Facts, text: str, advice: str) -> Finding:
    """The finding on the driver's part, with its want of a processor in front."""
    finding = of_driver(facts, Tense.PAST)
    finding.clause = f"{finding.clause}; {text}" if finding.clause else text
    finding.advice.append(advice)
    return finding


def _without_details(times: Times) -> Verdict:
    parts = {
        "start delay": times.start_delay_ms,
        "alignment": times.alignment_ms,
        "sync": times.sync_ms,
        "async": times.async_ms,
    }
    longest = max(parts, key=lambda part: parts[part])
    took = f"The {times.noun} took {duration(times.elapsed_ms)}"
    if not any(parts.values()):
        return Verdict(
            "good",
            f"{took}. It was taken without this control plane, which knows nothing else of it.",
        )
    kept = "Its acknowledgements are not kept any more, so no subtask can be named."
    return Verdict(
        "good",
        f"{took}; the longest part was {longest}, with {duration(parts[longest])}.",
        because=(
            kept,
            f"It wrote {size(times.written_bytes)} in {number(times.subtask_count)} "
            "operator subtasks.",
        ),
    )
