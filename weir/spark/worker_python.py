"""The Python of Spark's workers on this machine, compared with the driver's before they start.

Spark would start its tasks again and again, each of which ends with an error in its log.
"""

import os
import shutil
import subprocess
import sys

from weir.errors import SlotError

_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_TIMEOUT_S = 20


def check_worker_python(worker: str) -> None:
    """Check that workers run the driver's version of Python; a path that cannot run passes.

    Raises:
        SlotError: They run another one; the message names both.
    """
    path = shutil.which(worker)
    if path is None or os.path.realpath(path) == os.path.realpath(sys.executable):
        return
    try:
        run = subprocess.run(
            [path, "-c", _VERSION], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return  # Spark starts it too, and tells why it cannot.
    of_workers, own = run.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if of_workers != own:
        raise SlotError(
            f"the workers run Python {of_workers} ({path}, by PYSPARK_PYTHON), the driver runs "
            f"Python {own} ({sys.executable}), and both must be the same: set "
            f"PYSPARK_PYTHON={sys.executable}"
        )
