"""A process has ended when its last thread has: until then it holds its files and its port."""

import subprocess
import sys

import psutil

from tests.waiting import wait_until
from weir.child_process import is_alive

# The first thread ends by itself, which Python never does; the other goes on for a moment.
FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1.5,), daemon=True).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_alive_while_others_run() -> None:
    with subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS]) as child:
        process = psutil.Process(child.pid)
        wait_until(
            lambda: process.status() == psutil.STATUS_ZOMBIE,
            "its first thread has ended",
            poll_s=0.01,
        )
        was_running = child.poll() is None
        assert was_running, "the occasion never came: all of it was gone at once"
        assert is_alive(process)
        wait_until(lambda: not is_alive(process), "the process has ended")
        assert child.poll() is not None
