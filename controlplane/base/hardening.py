"""Protection of a service process from other processes of its user.

User code may run as the user of the services (``jobs.drivers.driver_account``). An undumpable
process keeps its environment, memory and open files to itself: ``/proc/PID/environ``, ``mem``,
``fd`` and ``maps`` belong to root, and only root may trace it. A child that runs another program is
dumpable again. Debuggers and profilers that attach need root.

Source: prctl(2), PR_SET_DUMPABLE; proc(5).
"""

import ctypes
import logging
import sys

logger = logging.getLogger(__name__)

_PR_SET_DUMPABLE = 4


def make_undumpable() -> bool:
    """Make this process undumpable; return whether the system could, which only Linux can."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        logger.warning("the process stays dumpable: prctl failed, errno %d", ctypes.get_errno())
        return False
    return True
