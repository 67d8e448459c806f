"""A process of Weir's own: web, a Celery worker, beat."""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from controlplane.embedded.fork_server import ForkServer, fork_with
from controlplane.embedded.process import ChildProcess, ServiceProcess
from controlplane.embedded.server import write_private
from weir.child_process import ProcessOptions, is_alive

START_TIME_TOLERANCE_S = 0.5


class Program(ServiceProcess):
    """A long-running command, with all processes of its process group.

    ``answers`` says whether the program is ready; it is called until then. ``fork_server`` starts
    it, if there is one with its environment, and else it is a Python of its own.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        *,
        log_path: Path,
        pid_path: Path,
        directory: Path,
        environment: Callable[[], Mapping[str, str]],
        answers: Callable[[], bool],
        fork_server: Callable[[], ForkServer | None] = lambda: None,
    ) -> None:
        super().__init__(name, log_path)
        self._words = command
        self._pid_file = pid_path
        self._directory = directory
        self._environment = environment
        self._is_ready = answers
        self._fork_server = fork_server

    def leftover_pid(self) -> int | None:
        """The id of the process that an earlier starter left behind."""
        try:
            kept = json.loads(self._pid_file.read_text())
        except FileNotFoundError:
            return None
        try:
            process = psutil.Process(kept["pid"])
        except psutil.NoSuchProcess:
            return None
        # The start time tells the process from a later one with the same pid.
        same = abs(process.create_time() - kept["started_at"]) < START_TIME_TOLERANCE_S
        return process.pid if same and is_alive(process) else None

    def end_leftover(self) -> bool:
        """End the process that a killed starter left behind, and its process group."""
        pid = self.leftover_pid()
        ended = super().end_leftover()
        if pid is not None:
            end_group(pid)
        return ended

    def _command(self) -> Sequence[str]:
        return self._words()

    def _answers(self) -> bool:
        return self._is_ready()

    def _popen(self, command: Sequence[str], log: int) -> ChildProcess:
        server, environment, title = self._fork_server(), self._environment(), f"weir:{self.name}"
        fork = fork_with(server, command, environment, title=title, stdout=log, stderr=log)
        return fork or super()._popen(command, log)

    def _popen_options(self) -> ProcessOptions:
        return {"cwd": str(self._directory), "env": dict(self._environment())}

    def _prepare(self, deadline: float) -> None:
        # A killed Celery worker leaves its pool behind, which would go on taking tasks.
        self._end_group_of_last()

    def _spawn(self) -> int:
        log_start = super()._spawn()
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):  # A fork that has ended leaves no zombie here.
            started_at = psutil.Process(self._process.pid).create_time()
            kept = json.dumps({"pid": self._process.pid, "started_at": started_at})
            write_private(self._pid_file, kept)
        return log_start

    def _after_end(self) -> None:
        self._end_group_of_last()
        self._pid_file.unlink(missing_ok=True)

    def _end_group_of_last(self) -> None:
        try:
            end_group(json.loads(self._pid_file.read_text())["pid"])
        except FileNotFoundError:
            return


def end_group(leader: int) -> None:
    """Kill the rest of the process group that ``leader`` led, once the leader has ended."""
    try:
        if is_alive(psutil.Process(leader)):
            return  # The pid was reused, so nothing is left of the group.
    except psutil.NoSuchProcess:
        pass  # Ended, as expected.
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
