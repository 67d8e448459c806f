"""Clauses, reasons and advice about a subtask that a checkpoint waited for. Pure."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from checkpoints.verdict.causes import Skew, skew
from checkpoints.verdict.facts import Call, Facts, Key, Stall, name_of, share
from checkpoints.verdict.result import Cause, Finding, Hop, LateChannel
from checkpoints.verdict.stacks import Waiting, waits_for, where
from checkpoints.verdict.starvation import (
    also_starved,
    cpu_wait,
    is_driver_starved,
    is_starved,
    pressure,
    slots_on_host,
)
from checkpoints.verdict.upstream_walk import Blame, Why
from checkpoints.verdict.upstream_walk import Hop as Step
from controlplane.base.formatting import duration, listed, number, rough_duration, size

BUSIEST_NAMED = 3
NEARLY_ALL_FACTOR = 1_000  # Beyond it a factor says less than a word.
AT_WORK_SHARE = 0.5  # Of the time, waits for a processor included.
WORKS_MOST_SHARE = 0.5  # Of the samples of a subtask: then one operator of its chain is named.
BLOCKED_MS = 500.0  # A quarter of the time that shares are of.

AGAINST_FROZEN = (
    "whether it is stopped (state T in ps), swaps, or is in a call into C that keeps Python's "
    "interpreter lock (py-spy dump --native shows it)"
)
# By what a call waits for.
_AGAINST_CALL: Mapping[Waiting, str] = {
    Waiting.SOCKET: (
        "It waits for another system: look at that one. Give every call to the outside a timeout, "
        "and fetch in batches."
    ),
    Waiting.LOCK: (
        "It waits for a lock or another thread of the function: look at what holds it, and give "
        "the wait a timeout."
    ),
    Waiting.SLEEP: (
        "It sleeps, and with it all subtasks of the slot: use a timer instead, or a shorter pause."
    ),
    Waiting.SINK: (
        "It waits for the files of the sink: look at the latency and the space of the directory "
        "that it writes to, and at what else writes there."
    ),
    Waiting.STORAGE: (
        "It waits for files of the checkpoint storage: look at its latency and its space."
    ),
    Waiting.NATIVE: (
        "It waits in a call into C, such as for a file, a device or a library's own connection: "
        "look at that line, and give the call a timeout."
    ),
    Waiting.LOCKED: (
        "It stayed in one call into C, which kept Python's interpreter lock, so that the process "
        "sent no heartbeat either: call it with less at a time, or use a library that releases the "
        "lock."
    ),
    Waiting.NOTHING: (
        "It computes: make the work of one call smaller, or spread it over more subtasks. A call "
        "to the outside needs a timeout."
    ),
}


class Tense(StrEnum):
    """Whether the checkpoint is over."""

    PAST = "was"
    PRESENT = "is"

    @property
    def has(self) -> str:
        """The auxiliary verb for an action that was over by then."""
        return "had" if self is Tense.PAST else "has"

    @property
    def has_been(self) -> str:
        """The verb for a state that lasted."""
        return "was" if self is Tense.PAST else "has been"


def of_blame(facts: Facts, blame: Blame, tense: Tense) -> Finding:
    """The finding on a blamed subtask, with numbers and advice.

    The clause is empty for a subtask that had time, or whose busy share was not reported.
    """
    name, rates = name_of(blame.key), blame.rates
    match blame.why:
        case Why.STUCK:
            assert blame.stall is not None
            return of_stall(facts, blame.key, blame.stall, tense)
        case Why.SILENT:
            return of_silence(facts, blame.key, blame.silent_ms or 0.0, tense)
        case Why.BUSY | Why.NEIGHBOUR:
            assert rates is not None
            finding = _of_busy(facts, blame.key, rates.busy, tense)
            if blame.why is Why.NEIGHBOUR:
                finding.because.append(
                    f"{name} and {name_of(blame.way[0])} share the loop of slot {blame.key[1]}: "
                    "while one works the other waits."
                )
            return _with_wait(facts, finding, blame.key, tense)  # It worked for longer than that.
        case Why.LOCKED:
            return of_lock(facts, blame.key, tense)
        case Why.STARVED:
            return of_starvation(facts, blame.key, tense)
        case Why.IDLE:
            assert rates is not None
            return Finding("", because=[f"{name} itself had time: {rates.known}."])
        case Why.UNKNOWN:
            return Finding("", because=[f"The busy share of {name} was not reported."])


def of_stall(facts: Facts, key: Key, stall: Stall, tense: Tense) -> Finding:
    """The finding on a call that does not return, or returned late."""
    name, frame, waiting = name_of(key), where(stall.stack), waits_for(stall.stack)
    if waiting is Waiting.FROZEN:
        return of_standstill(facts, key, stall, tense)
    what = f"stuck in {frame.text}" if frame else "stuck in one call"
    if waiting is Waiting.SINK:
        what = f"stuck in the storage of {_sinks(facts, key)}"
    elif waiting is Waiting.STORAGE:
        what = "stuck in the checkpoint storage"
    elif waiting is Waiting.LOCKED:
        what = "stuck in a call into C"
    function = frame.function if frame and waiting is not Waiting.LOCKED else "the function"
    clause = f"{name} {tense.has_been} {what} for {duration(stall.stalled_ms)}"
    call = f"{function} of {facts.label(key[0])}"
    takes = "took" if tense is Tense.PAST else "takes"
    long = (
        f"{call} did not return for {duration(stall.stalled_ms)}"
        if tense is Tense.PAST
        else f"{call} does not return"
    )
    finding = Finding(
        clause,
        f"{name} ({what} for {duration(stall.stalled_ms)})",
        because=[
            f"The loop of slot {key[1]}{facts.slot(key).text} {tense.has_been} held by one call of "
            f"{name} for {duration(stall.stalled_ms)}; meanwhile no subtask of that slot {takes} a "
            "record or a barrier.",
        ],
        advice=[f"Look at the stack: {long}. {_AGAINST_CALL[waiting]}"],
        culprits=[name],
        stack=stall.stack,
        cause=Cause.SINK if waiting is Waiting.SINK else Cause.STUCK,
    )
    if waiting is Waiting.LOCKED and frame:
        finding.because.append(f"Right after that call the loop was in {frame.text}.")
    return _with_wait(facts, finding, key, tense)


def of_standstill(facts: Facts, key: Key, stall: Stall, tense: Tense) -> Finding:
    """The finding on a slot whose process ran for a while not at all."""
    slot = f"slot {key[1]}{facts.slot(key).text}"
    stood = duration(stall.stalled_ms)
    return Finding(
        f"{slot}, where {name_of(key)} {'runs' if tense is Tense.PRESENT else 'ran'}, was frozen "
        f"for {stood}",
        f"{name_of(key)} (frozen for {stood})",
        because=[
            f"No thread of that process ran for {stood}, and none of them waited for a processor."
        ],
        advice=[
            f"Find out what stopped the process of {slot}: a signal (SIGSTOP), a debugger, memory "
            "that was swapped out, a paused container or virtual machine."
        ],
        culprits=[name_of(key)],
        cause=Cause.FROZEN,
    )


def _sinks(facts: Facts, key: Key) -> str:
    """The sinks of a chain, in words: ``"the sink Out"``."""
    sinks = [o.name for o in facts.operators if o.chain == key[0] and o.is_sink]
    if len(sinks) == 1:
        return f"the sink {sinks[0]}"
    return f"the sinks {listed(sinks, BUSIEST_NAMED)}" if sinks else "its sink"


def of_silence(facts: Facts, key: Key, silent_ms: float, tense: Tense) -> Finding:
    """The finding on a subtask that reports nothing while other slots report."""
    name, slot = name_of(key), facts.slot(key).text
    runs, says = ("ran", "had reported") if tense is Tense.PAST else ("runs", "has reported")
    return Finding(
        f"slot {key[1]}{slot}, where {name} {runs}, {tense} frozen: it {says} nothing for "
        f"{rough_duration(silent_ms)}",
        f"{name} (silent for {rough_duration(silent_ms)})",
        because=[
            f"Subtasks of other slots reported meanwhile, so slot {key[1]} is silent, not the "
            "driver."
        ],
        advice=[
            f"Look at the process of slot {key[1]}{slot}: {AGAINST_FROZEN}; and whether its host "
            "is reachable. It is replaced after the heartbeat timeout.",
        ],
        culprits=[name],
        cause=Cause.FROZEN,
    )


def of_lock(facts: Facts, key: Key, tense: Tense) -> Finding:
    """The finding on a subtask whose slot has threads of user code that compute."""
    name, beside = name_of(key), facts.evidence.beside[key[1]]
    runs, keep = ("ran", "kept") if tense is Tense.PAST else ("runs", "keep")
    at = f", most of it in {beside.text}" if beside.text else ""
    slot = f"slot {key[1]}{facts.slot(key).text}"
    return Finding(
        f"threads of the job's own code {keep} the interpreter lock from {slot}, where {name} "
        f"{runs}: they used {share(beside.cpu_share)} of a processor{at}",
        f"{name} (threads of the job's own code {keep} the interpreter lock{at})",
        because=[
            f"A thread of slot {key[1]} that woke waited {duration(beside.lock_wait_ms)} for the "
            "interpreter lock on average, and its loop wakes for each batch. One thread of a "
            "process runs Python at a time.",
        ],
        advice=[
            "Let these threads do less, or move their work into a process of its own "
            "(multiprocessing) or into calls that give the lock up while they compute (NumPy, "
            "Arrow).",
        ],
        culprits=[name],
        cause=Cause.LOCKED,
    )


def of_starvation(facts: Facts, key: Key, tense: Tense) -> Finding:
    """The finding on a subtask whose slot was ready to run and had no processor."""
    name, slot, waited = name_of(key), facts.slot(key), share(cpu_wait(facts, key[1]))
    runs, waits = ("ran", "waited") if tense is Tense.PAST else ("runs", "waits")
    place = f"slot {key[1]}" + (f" on host {slot.host}" if slot.host else "")
    busiest = _busiest_of_slot(facts, key)
    at = _of_place(facts, busiest) if busiest is not None else ""
    works = f"works most {at}" if tense is Tense.PRESENT else f"worked most {at}"
    clause = f"{place}, where {name} {runs}, {waits} {waited} of the time for a processor"
    return Finding(
        f"{clause}; with one it {works}" if at else clause,
        f"{name} ({place} {waits} {waited} of the time for a processor)",
        because=[*_of_wait(facts, key, tense), *(_of_calls(facts, busiest) if busiest else ())],
        advice=_against_wait(facts, key),
        culprits=[name],
        cause=Cause.STARVED,
    )


def _busiest_of_slot(facts: Facts, key: Key) -> Key | None:
    """The subtask that a slot worked for most; None: none was busy."""
    busy = {
        other: seen.rates.busy
        for other, seen in facts.evidence.subtasks.items()
        if other[1] == key[1] and seen.rates and seen.rates.busy >= AT_WORK_SHARE
    }
    return max(busy, key=lambda other: busy[other], default=None)


def _with_wait(facts: Facts, finding: Finding, key: Key, tense: Tense) -> Finding:
    """The finding on another cause, with the want of a processor beside it, if that is large."""
    if cpu_wait(facts, key[1]):
        finding.because += _of_wait(facts, key, tense)
        finding.advice += _against_wait(facts, key)
    return finding


def _of_wait(facts: Facts, key: Key, tense: Tense) -> list[str]:
    because = [
        f"The loop of slot {key[1]}{facts.slot(key).text} {tense} ready to run and {tense.has} no "
        f"processor for {share(cpu_wait(facts, key[1]))} of about two seconds; busy and "
        "idle shares include that."
    ]
    if short := pressure(facts, key[1]):
        because.append(_of_pressure(facts, key, short))
    if (count := slots_on_host(facts, key[1])) > 1:
        runs = "ran" if tense is Tense.PAST else "run"
        because.append(f"{count:,} slots of this job {runs} on that host.")
    if others := also_starved(facts, key[1]):
        shares = [f"slot {i}{facts.slot(('', i)).text} {share(waited)}" for i, waited in others]
        because.append(f"Other slots without a processor: {listed(shares, BUSIEST_NAMED)}.")
    return because


def _of_pressure(facts: Facts, key: Key, short: float) -> str:
    host = facts.slot(key).host
    place = f"host {host}" if host else f"the host of slot {key[1]}"
    return (
        f"On {place} some process was ready to run and had no processor for {share(short)} of "
        "that time."
    )


def of_pressure(facts: Facts, key: Key, tense: Tense) -> Finding:
    """The finding on a host that was short of processors, where no slot's own wait is large."""
    host = facts.slot(key).host
    place = f"host {host}" if host else f"the host of slot {key[1]}"
    runs = "ran" if tense is Tense.PAST else "runs"
    return Finding(
        f"{place}, where {name_of(key)} {runs}, {tense} short of processors",
        f"{name_of(key)} ({place} {tense} short of processors)",
        because=[_of_pressure(facts, key, pressure(facts, key[1]))],
        advice=_against_wait(facts, key),
        culprits=[name_of(key)],
        cause=Cause.STARVED,
    )


def of_silent_driver(silent_ms: float) -> Finding:
    """The finding on a driver that gives no sign of life, so that nothing is known of its slots."""
    return Finding(
        f"the driver is frozen or cut off: it has given no sign of life for "
        f"{rough_duration(silent_ms)}",
        "the driver",
        because=["Slots report to the driver, so nothing is known of them meanwhile."],
        advice=[
            f"Look at the driver's process: {AGAINST_FROZEN}; and at its connection to the control "
            "plane. It is replaced after the driver timeout."
        ],
        culprits=["driver"],
        cause=Cause.FROZEN,
    )


def of_driver(facts: Facts, tense: Tense) -> Finding:
    """The finding on a driver that waited for a processor; without a clause if it had one."""
    driver = facts.evidence.driver
    if driver is not None and driver.stood_ms:
        stood = duration(driver.stood_ms)
        return Finding(
            f"the driver was frozen for {stood}",
            because=[f"None of its threads ran for {stood}, nor waited for a processor."],
            advice=[
                "Find out what stopped the driver's process: a signal (SIGSTOP), a debugger, "
                "memory that was swapped out, a paused container or virtual machine."
            ],
            culprits=["driver"],
            cause=Cause.FROZEN,
        )
    if driver is None or not is_driver_starved(facts):
        return Finding("", cause=Cause.DRIVER)
    waits = "waited" if tense is Tense.PAST else "waits"
    return Finding(
        f"the driver {waits} for a processor for {share(driver.lack)} of the time in which it had "
        "work",
        because=[
            f"Its threads ran for {duration(driver.ran_ms)} and were ready to run without a "
            f"processor for {duration(driver.waited_ms)} of {duration(driver.window_ms)}."
        ],
        advice=[
            "See what else runs on the driver's host, and whether a container there has a "
            "processor limit. Give it more cores, or run slots and driver on different hosts."
        ],
        cause=Cause.STARVED,
    )


def _against_wait(facts: Facts, key: Key) -> list[str]:
    host = facts.slot(key).host
    place = f"host {host}" if host else f"the host of slot {key[1]}"
    return [
        f"See what else runs on {place}, and whether a container there has a processor limit. Run "
        "fewer slots on it, give it more cores, or move slots to another host."
    ]


def _of_busy(facts: Facts, key: Key, busy: float, tense: Tense) -> Finding:
    name = name_of(key)
    at = f", most of it {place}" if (place := _of_place(facts, key)) else ""
    clause = f"{name} {tense} slow, busy {share(busy)} of the time{at}"
    because = [*_of_calls(facts, key), *_of_chain(facts, key)]
    if (skewed := skew(facts, key)) is not None:
        most = _most(skewed)
        return Finding(
            f"{clause}: it got {most}",
            f"{name} (busy {share(busy)}, {most})",
            because=[_of_skew(skewed), *because],
            advice=_against_skew(facts, skewed),
            culprits=[name],
            cause=Cause.SKEWED,
        )
    return Finding(
        clause,
        f"{name} (busy {share(busy)}{at})",
        because=because,
        advice=_against_load(facts, key),
        culprits=[name],
        cause=Cause.BUSY,
    )


def _calls(facts: Facts, key: Key) -> Sequence[Call]:
    rates = facts.evidence.rates(key)
    return rates.calls if rates else ()


def _of_place(facts: Facts, key: Key) -> str:
    """The operator of the chain that most of the work is in, and its line; empty: none is."""
    shares: dict[str, float] = {}
    for call in _calls(facts, key):
        shares[call.operator] = shares.get(call.operator, 0.0) + call.share
    operator = max(shares, key=lambda uid: shares[uid], default=None)
    if operator is None or shares[operator] < WORKS_MOST_SHARE:
        return ""
    lines = [call for call in _calls(facts, key) if call.operator == operator]
    line = max(lines, key=lambda call: call.share).text
    label = facts.operator_label(operator)
    return f"in {line} of {label}" if line else f"in {label}"


def _of_calls(facts: Facts, key: Key) -> list[str]:
    """The lines in which samples met a subtask at work."""
    places = [
        f"{f'{call.text} of ' if call.text else ''}{facts.operator_label(call.operator)} "
        f"{share(call.share)}"
        for call in _calls(facts, key)
    ]
    return [f"Samples met {name_of(key)} at work in {', '.join(places)}."] if places else []


def _most(skewed: Skew) -> str:
    if skewed.middle < skewed.own / NEARLY_ALL_FACTOR:
        return "nearly all records"
    factor = f"{skewed.factor:.1f}" if skewed.factor < 9.95 else f"{skewed.factor:,.0f}"
    return f"{factor} times the records of its siblings"


def _of_skew(skewed: Skew) -> str:
    return (
        f"{name_of(skewed.key)} got {number(round(skewed.own))} {skewed.unit}; the median of its "
        f"siblings is {number(round(skewed.middle))}."
    )


def _against_skew(facts: Facts, skewed: Skew) -> list[str]:
    if skewed.key[0] not in facts.keyed_chains:
        if not facts.upstream.get(skewed.key[0]):
            return [
                f"Give the source {facts.label(skewed.key[0])} more and smaller splits, so that "
                "its subtasks read equally much."
            ]
        return [f"Spread the records evenly before {facts.label(skewed.key[0])} (rebalance)."]
    return [
        f"A few keys of {facts.label(skewed.key[0])} have most of the records. Aggregate before "
        "the shuffle (combine), or salt the key and aggregate in two steps.",
        "More parallelism does not help: all records of a key go to one subtask.",
    ]


def _were_blocked(facts: Facts, key: Key) -> bool:
    """Whether siblings waited for barriers while shares were measured: these compare nothing."""
    for other, ack in facts.acks.items():
        if other[0] == key[0] and other != key and ack.alignment_ms >= BLOCKED_MS:
            return True
    return any(
        seen.aligning is not None and seen.aligning.waited_ms >= BLOCKED_MS
        for other, seen in facts.evidence.subtasks.items()
        if other[0] == key[0] and other != key
    )


def _of_chain(facts: Facts, key: Key) -> list[str]:
    if _were_blocked(facts, key):
        return []
    chain = facts.evidence.chains.get(key[0])
    busiest = sorted(
        (
            (seen.rates.busy, other)
            for other, seen in facts.evidence.subtasks.items()
            if other[0] == key[0] and seen.rates
        ),
        reverse=True,
    )[:BUSIEST_NAMED]
    if chain is None or chain.busy is None or chain.count < 2:
        return []
    named = ", ".join(f"{name_of(other)} {share(busy)}" for busy, other in busiest)
    return [
        f"Busy shares of {facts.label(key[0])}: {share(chain.busy)} on average over "
        f"{chain.count:,} subtasks; the busiest: {named}."
    ]


def _against_load(facts: Facts, key: Key) -> list[str]:
    label, chain = facts.label(key[0]), facts.evidence.chains.get(key[0])
    alone = chain is not None and chain.busy is not None and chain.count > 1 and chain.busy < 0.5
    if alone and not _were_blocked(facts, key):
        return [
            f"Only some subtasks of {label} are busy, with no more records than their siblings: "
            f"check whether the host of slot {key[1]}{facts.slot(key).text} is slower or loaded, "
            "and whether some records cost far more than others.",
        ]
    return [
        f"Make {label} faster (work on whole batches, avoid calls per record), or give it more "
        "parallelism and slots.",
    ]


def of_two(first: Finding, second: Finding, tense: Tense) -> Finding:
    """Two findings as one, the worse culprit first."""
    verb = "were" if tense is Tense.PAST else "are"
    return Finding(
        f"two operators {verb} slow, {first.short} most, then {second.short}",
        f"{first.short} and {second.short}",
        because=[*first.because, *second.because],
        advice=[
            f"Begin with {first.culprits[0]}: as long as it is slow, mending "
            f"{second.culprits[0]} alone does not help.",
            *first.advice,
            *second.advice,
        ],
        culprits=[*first.culprits, *second.culprits],
        stack=first.stack or second.stack,
        cause=first.cause,
    )


def of_step(step: Step) -> LateChannel:
    """The channel on which a barrier was late; its text follows the words "the barrier"."""
    if step.is_all:
        text = f"under way for {duration(step.transit_ms)}"
    else:
        text = f"{duration(step.arrived_ms)} after the first one"
    if step.behind_bytes:
        text += f", behind {size(step.behind_bytes)}"
    return LateChannel(name_of(step.sender), name_of(step.receiver), text)


def of_channel(channel: LateChannel, step: Step, named: Sequence[str]) -> str:
    """A late channel as a clause of its own; a sender in ``named`` is not named again."""
    whose = "its barrier" if list(named) == [channel.sender] else f"the barrier of {channel.sender}"
    if step.is_all:
        return f"{whose} was {channel.text} to {channel.receiver}"
    return f"{whose} reached {channel.receiver} {channel.text}"


def hop(facts: Facts, key: Key, text: str = "") -> Hop:
    """A subtask on the path, with its share of time."""
    rates = facts.evidence.rates(key)
    label = facts.label(key[0])
    parts = [label] if label != key[0] else []
    if facts.evidence.stall(key) is not None:
        parts.append("stuck")
    elif rates is not None:
        parts.append(rates.known)
    if is_starved(facts, key):
        parts.append(f"without a processor {share(cpu_wait(facts, key[1]))}")
    parts += [text] if text else []
    return Hop(key[0], name_of(key), ", ".join(parts))
