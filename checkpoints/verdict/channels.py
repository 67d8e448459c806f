"""A channel that held a barrier although both of its ends had time. Pure.

Between two slots of one host, and even more within one slot, there is no network to blame: either
the host was short of processors or memory, or its processes stood still.
"""

from checkpoints.verdict.facts import Facts, Key
from checkpoints.verdict.result import Finding
from checkpoints.verdict.starvation import pressure
from checkpoints.verdict.wording import Tense, of_pressure


def of_pressed_host(facts: Facts, sender: Key, receiver: Key, tense: Tense) -> Finding | None:
    """The finding on the host at an end that was short of processors; None: neither was."""
    pressed = max((receiver, sender), key=lambda key: pressure(facts, key[1]))
    if not pressure(facts, pressed[1]):
        return None
    finding = of_pressure(facts, pressed, tense)
    if not facts.share_host(sender[1], receiver[1]):
        finding.advice += [f"Check {_network(facts, sender, receiver)}, too."]
    return finding


def against_channel(facts: Facts, sender: Key, receiver: Key) -> list[str]:
    """The advice where neither end is to blame, or too little is known of them."""
    host = facts.slot(receiver).host
    place = f"host {host}" if host else f"the host of slot {receiver[1]}"
    if facts.share_host(sender[1], receiver[1]):
        return [
            f"Both ends are on {place}, so no network is between them: check whether that host "
            "swapped, or was stopped for a while, as a virtual machine is."
        ]
    if facts.evidence.rates(receiver) is None:
        return [
            f"Check whether {facts.label(receiver[0])} keeps up with its input, and check "
            f"{_network(facts, sender, receiver)}."
        ]
    return [
        f"Both ends had time, so look between them: check {_network(facts, sender, receiver)}, and "
        "whether one of the hosts was short of memory."
    ]


def _network(facts: Facts, sender: Key, receiver: Key) -> str:
    return (
        f"the network from slot {sender[1]}{facts.slot(sender).text} to slot {receiver[1]}"
        f"{facts.slot(receiver).text}"
    )
