"""Threads that read and write messages at once, in a process that has not done so before."""

import subprocess
import sys

ROUNDS = 30
THREADS = 4

# A mistake here ends the process by a signal. Each round makes the structs anew.
SCRIPT = f"""
import importlib, sys, threading
from tests.builders import started
from weir.wire import batches, mirrors

event = started(1)
body = batches.encode_batch(1, [batches.encode_event(event)])
read = []

def use(ready):
    ready.wait()
    batches.encode_event(event)
    read.extend(batches.decode_batch(body).events)

sys.setswitchinterval(1e-6)
for _ in range({ROUNDS}):
    importlib.reload(mirrors)
    importlib.reload(batches)
    ready = threading.Barrier({THREADS})
    threads = [threading.Thread(target=use, args=(ready,)) for _ in range({THREADS})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert read == [event] * {ROUNDS * THREADS}
"""


def test_the_first_messages_may_come_on_several_threads_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
