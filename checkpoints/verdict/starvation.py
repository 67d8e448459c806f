"""Slots whose loop was ready to run and had no processor, or not Python's interpreter lock. Pure.

The wait for a processor comes anywhere in a subtask's time. In a call it looks like work, and
asleep, after an element has come, like idleness; so neither busy nor idle shares tell of it, and
the channel in front of such a slot looks slow. The wait belongs to the loop, so it is judged by
slot. It explains a delay unless a subtask of the slot worked for longer than the loop waited: work
is the busiest one's busy share without the wait.

The interpreter lock is one for all threads of a slot. Those that user code started, and that
compute in Python, keep it from the loop each time it wakes; to the system it is asleep meanwhile.
"""

from checkpoints.verdict.facts import CpuWait, Facts, Key

# A loop that always has work and waits for a quarter of the time is a third slower than it need be;
# short bursts of other programs stay below that over the two seconds that are measured.
CPU_WAIT_SHARE = 0.25
# On a host that is short of processors anyway less tells of it: a loop that mostly sleeps waits
# only when it wakes.
CPU_WAIT_SHARE_UNDER_PRESSURE = 0.1
# Half of all time some thread had no processor: more than programs that begin or end.
PRESSURE_SHARE = 0.5
# A driver mostly sleeps, so its wait is set against its work; one that hardly woke says nothing.
DRIVER_LACK = 0.3
DRIVER_WAITED_MS = 50.0
# A thread that computes gives the lock up after 5 ms. One that has let it go, as NumPy does, makes
# none wait; then it is the loop that does, less than half as long if it works half of the time.
LOCK_WAIT_MS = 2.5
LOCK_SHARE = 0.5  # Of a processor: threads that use more, and a loop that uses less.


def cpu_wait(facts: Facts, index: int) -> float:
    """A slot's share of time without a processor, where it is large; else 0."""
    wait = facts.evidence.cpu_waits.get(index)
    return wait.share if wait is not None and _is_large(wait) else 0.0


def _is_large(wait: CpuWait) -> bool:
    is_pressed = wait.pressure >= PRESSURE_SHARE
    return wait.share >= (CPU_WAIT_SHARE_UNDER_PRESSURE if is_pressed else CPU_WAIT_SHARE)


def pressure(facts: Facts, index: int) -> float:
    """The share of time in which a slot's host was short of processors, where large; else 0."""
    wait = facts.evidence.cpu_waits.get(index)
    return wait.pressure if wait is not None and wait.pressure >= PRESSURE_SHARE else 0.0


def is_driver_starved(facts: Facts) -> bool:
    """Whether the driver had work and waited for a processor for much of the time."""
    driver = facts.evidence.driver
    if driver is None or driver.waited_ms < DRIVER_WAITED_MS:
        return False
    return driver.lack >= DRIVER_LACK


def is_starved(facts: Facts, key: Key) -> bool:
    """Whether the want of a processor explains that a subtask's slot was slow."""
    wait = facts.evidence.cpu_waits.get(key[1])
    if wait is None or not _is_large(wait):
        return False
    return wait.share >= wait.busiest - wait.share


def is_locked_out(facts: Facts, key: Key) -> bool:
    """Whether threads of user code kept the interpreter lock from a subtask's slot."""
    beside = facts.evidence.beside.get(key[1])
    if beside is None:
        return False
    is_long = beside.lock_wait_ms >= LOCK_WAIT_MS
    return is_long and beside.cpu_share >= LOCK_SHARE > beside.loop_share


def slots_on_host(facts: Facts, index: int) -> int:
    """The number of the job's slots on the host of one, itself included; 0: not known."""
    host = facts.slots[index].host if index in facts.slots else ""
    return sum(slot.host == host for slot in facts.slots.values()) if host else 0


def also_starved(facts: Facts, index: int) -> list[tuple[int, float]]:
    """The other slots that waited for a processor, and their shares; the largest first."""
    shares = ((i, cpu_wait(facts, i)) for i in facts.evidence.cpu_waits if i != index)
    return sorted(((i, share) for i, share in shares if share), key=lambda item: -item[1])
