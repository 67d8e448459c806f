"""``manage.py weir_up`` as a user starts it, and a look at what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.embedded.stack import BASE_DIR

DEADLINE_S = 240.0  # Beside other load a driver takes a minute and a half to begin.


class WeirUp:
    """``manage.py weir_up`` as a user starts it."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "weir_up", "--home", str(home), *arguments],
            cwd=BASE_DIR,
            # Drivers that a killed run of the tests leaves behind end by themselves.
            env={**os.environ, "WEIR_DRIVER_ALONE_MAX_S": "300"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def await_line(self, wanted: str) -> str:
        """Read on until a line has ``wanted`` in it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:  # Ends with the process; pytest-timeout bounds it.
            self.output += line
            if wanted in line:
                return line
        pytest.fail(f"weir_up ended before it said {wanted!r}:\n{self.output}")

    def end(self, signal_number: signal.Signals) -> int:
        """Signal it and read what it says until it has ended."""
        self.process.send_signal(signal_number)
        rest, _ = self.process.communicate(timeout=DEADLINE_S)
        self.output += rest
        return self.process.returncode

    def login(self) -> tuple[str, str]:
        """The page's address and the password it printed."""
        self.await_line("Ctrl-C ends everything")
        page = re.search(r"page +(http://127\.0\.0\.1:\d+)", self.output)
        login = re.search(r"login +operator / (\S+)", self.output)
        assert page, self.output
        assert login, self.output
        return page[1], login[1]

    def job(self) -> str:
        """The address of the demonstration job, once ``login`` has read it."""
        match = re.search(r"job +(http://\S+)", self.output)
        assert match, self.output
        return match[1]
