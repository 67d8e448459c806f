"""Collections of garbage in a worker process: few looks at state, and no cycle kept for ever."""

import json
import subprocess
import sys
from typing import Any

from tests.unit.operators.operator_harness import ManualClock
from weir.worker.inbox import ThreadInbox
from weir.worker.memory.garbage import NEW_OBJECTS, Garbage
from weir.worker.memory.watch import LOOK_INTERVAL_NS
from weir.worker.ports import Call


class Process:
    """A worker process that holds so much memory at one look after another."""

    def __init__(self, *held: int) -> None:
        self.held = [100, *held]
        self.clock = ManualClock()
        self.inbox = ThreadInbox(lambda: None)
        self.garbage = Garbage(lambda: self.held.pop(0), self.inbox, self.clock)

    def asks(self) -> bool:
        """Whether the next look asks the loop for a collection."""
        self.clock.ms += LOOK_INTERVAL_NS // 1_000_000
        self.garbage.look()
        return bool(self.inbox)

    def loop(self) -> None:
        """The loop has time."""
        for item in self.inbox.drain():
            assert isinstance(item, Call)
            item.function()


def test_all_is_collected_where_memory_has_doubled_since_the_last_time() -> None:
    process = Process(199, 200, 150, 299, 300)
    assert not process.asks()
    assert process.asks()
    process.loop()  # It holds 150 afterwards.
    assert not process.asks()
    assert process.asks()
    assert process.held == []


def test_a_loop_that_has_no_time_is_asked_once() -> None:
    process = Process(200, 90, 500)
    assert process.asks()
    assert process.asks()
    (_,) = process.inbox.drain()
    assert not process.asks()
    assert process.held == [90, 500], "nothing is read meanwhile"


def test_memory_is_read_now_and_then() -> None:
    process = Process(150, 150)
    process.asks()
    process.garbage.look()
    assert process.held == [150]


def run(code: str) -> Any:
    """The output of a fresh interpreter that collects as a worker process does."""
    begin = (
        "import gc, json, weakref\n"
        "from weir.common import Row\n"
        "from weir.common.clock import SystemClock\n"
        "from weir.worker.inbox import ThreadInbox\n"
        "from weir.worker.memory.garbage import Garbage\n"
        "class Node: pass\n"
        "def ring():\n"
        "    node = Node()\n"
        "    node.itself = node\n"
        "    return node\n"
        "Garbage(lambda: 1, ThreadInbox(lambda: None), SystemClock()).start()\n"
        "looks = []\n"
        "gc.callbacks.append(lambda phase, info: looks.append(info['generation']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}{code}"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


REPLACED = f"""
state = {{n: Row(n=n, total=n) for n in range({3 * NEW_OBJECTS})}}
frozen = gc.get_freeze_count()
looks.clear()
for _ in range(100):
    records = [Row(n=n, total=n) for n in range({NEW_OBJECTS // 10})]
    for n, record in enumerate(records):
        state[n] = Row(n=n, total=record[1] + 1)
    del record, records
print(json.dumps([len(state), frozen, looks]))
"""


def test_batches_that_replace_state_cause_no_look_at_it() -> None:
    entries, frozen, looks = run(REPLACED)
    assert frozen >= entries - NEW_OBJECTS
    assert looks == []


YOUNG = f"""
rings = [weakref.ref(ring()) for _ in range({2 * NEW_OBJECTS})]
print(json.dumps([sum(one() is not None for one in rings), looks]))
"""


def test_young_cycles_are_collected_without_being_asked() -> None:
    left, looks = run(YOUNG)
    assert left < 1.1 * NEW_OBJECTS
    assert 2 not in looks


OLD = f"""
old = ring()
kept = [[] for _ in range({2 * NEW_OBJECTS})]
seen = weakref.ref(old)
del old
kept += [[] for _ in range({2 * NEW_OBJECTS})]
frozen = gc.get_freeze_count()
is_left = seen() is not None
gc.collect()
print(json.dumps([is_left, seen() is None, frozen, gc.get_freeze_count()]))
"""


def test_an_old_cycle_is_collected_when_it_is_asked_for() -> None:
    was_left, is_gone, before, after = run(OLD)
    assert was_left, "it was not frozen"
    assert is_gone
    assert min(before, after) > 2 * NEW_OBJECTS, "all else is frozen, before and after"
