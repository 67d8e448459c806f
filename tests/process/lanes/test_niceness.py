"""Lanes of a run step back for one another, those of root and of an ordinary user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.controlplane.test_watchdog import PLAIN_USER

STEPS = """
import subprocess
from pathlib import Path
from tests.__main__ import _step_back

for nice in (5, 6, 7):
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as lane:
        _step_back(lane.pid, nice)
        print(Path(f"/proc/{lane.pid}/autogroup").read_text().split()[-1])
        lane.kill()
"""


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel groups no sessions"
)
def test_several_lanes_of_an_ordinary_user_step_back_one_after_the_other() -> None:
    """The kernel refuses the second change within a tenth of a second of the first."""
    before = PLAIN_USER if os.geteuid() == 0 else ()
    command = [*before, sys.executable, "-c", STEPS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["5", "6", "7"], "")
