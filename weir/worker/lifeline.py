"""The lifeline, by which a process never outlives another one, even while it is in a C call.

The other process holds one end of a socket pair and sends nothing; however that process ends, its
end is closed. Watching for this in Python would not suffice: user code may sit in a C call that
keeps the interpreter lock. So the kernel acts: it sends SIGKILL to the process group that holds
this end, which includes processes that user code has started.

Source: fcntl(2), O_ASYNC, F_SETOWN and F_SETSIG; Linux only.
"""

import fcntl
import os
import select
import signal
import socket
import threading
from collections.abc import Callable


def die_with(lifeline: socket.socket) -> None:
    """Kill this process's group as soon as the other end of ``lifeline`` is closed.

    Nothing may ever be sent on it: any event on the socket kills.
    """
    fd = lifeline.fileno()
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([fd], [], [], 0)[0]:  # Closed before the kernel was asked.
        os.killpg(os.getpgrp(), signal.SIGKILL)


def when_parent_ends(act: Callable[[], None]) -> None:
    """Call ``act`` in a thread of its own as soon as this process's parent has ended.

    For a process without a socket to its parent. The kernel's own signal (``PR_SET_PDEATHSIG``)
    would not suffice: it is sent when the *thread* ends that started this process.
    """
    parent = os.getppid()
    descriptor = os.pidfd_open(parent)
    is_gone = os.getppid() != parent  # Then the descriptor may be another process's.

    def watch() -> None:
        if not is_gone:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        os.close(descriptor)
        act()

    threading.Thread(target=watch, name="weir-parent", daemon=True).start()
