"""The executor's side of a slot: the supervisor, which runs as a Spark task.

The supervisor registers with the job master, keeps a warm template (``weir.worker.template``) and
runs one worker process per attempt. It has one thread and one selectors loop, and runs no user
code, so that no pipeline can break it. It ends when the job master releases the slot or has ended,
and leaves no process, descriptor or file behind. Copies of state files that a worker leaves for the
next one lie in a directory of the supervisor's; of a supervisor that died, the one that serves in
its place on the same machine takes them over.

Processes are never addressed by a pid that another process may have got meanwhile: a worker is
killed by closing its lifeline, on which the kernel kills its whole process group, and signalled
through a descriptor.
"""

import errno
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from weir.channels.control_connection import ControlConnection
from weir.channels.security import derive_worker_credentials, open_credentials
from weir.config import UNANSWERED_MS_MAX
from weir.errors import ConfigError, ProtocolError, SlotError
from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import (
    Address,
    Credentials,
    DismissSlot,
    ReleaseSlot,
    SlotAccepted,
    SlotFailed,
    SlotHeartbeat,
    SlotRegistered,
    StartWorker,
    StopWorker,
    WorkerExited,
)
from weir.secrets.masked_output import MaskedPipe
from weir.secrets.masking import Masker
from weir.spark.template_process import TemplateProcess
from weir.storage.local_directory import COPIES, LocalDirectory
from weir.worker.memory.cgroup import Cgroup, find_cgroup
from weir.worker.template import (
    WORKER,
    ForkFailed,
    LoadProgram,
    ProgramFailed,
    RunWorker,
    TemplateLink,
    TemplateMessage,
    TemplateReady,
    WorkerEnded,
    WorkerStarted,
)
from weir.worker.versions import installed_versions

HEARTBEAT_INTERVAL_S = 1.0
AUTHENTICATION_TIMEOUT_S = 10.0
RELEASE_TIMEOUT_S = 2.0
STDERR_TAIL_BYTES = 8 << 10
_STDERR = 2
# Exit codes of a process that another ended: the kernel for want of memory, a person, a service.
KILLS = (-signal.SIGKILL, -signal.SIGTERM)

logger = logging.getLogger(__name__)


def slot_task(
    master: Address, unanswered_ms_max: int
) -> Callable[[int, Iterator[Credentials]], Iterator[Any]]:
    """The function for ``RDD.mapPartitionsWithIndex``: partition *i* is slot *i*.

    The partition holds one element, the credentials of that slot, so that no slot gets another's.
    """

    def serve(slot_index: int, partition: Iterator[Credentials]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        spark_attempt = 0 if context is None else context.taskAttemptId()
        (credentials,) = partition
        run_slot(
            slot_index, master, credentials, spark_attempt, unanswered_ms_max=unanswered_ms_max
        )
        return iter(())

    return serve


def run_slot(
    slot_index: int,
    master: Address,
    credentials: Credentials,
    spark_attempt: int,
    *,
    unanswered_ms_max: int = UNANSWERED_MS_MAX,
    worker: str = WORKER,
    root: Path = Path("/"),
) -> None:
    """Serve as a slot until the job master releases or dismisses it.

    Args:
        unanswered_ms_max: A job master that acknowledges nothing for so long is lost.
        worker: The class whose instances the worker processes run, as ``module:name``.
        root: The directory under which the files of its cgroup are.

    Raises:
        ChannelError: The job master cannot be reached, or the slot and it refuse each other.
        SlotError: The job master does not answer, or the connection to it was lost.
    """
    forked = TemplateProcess.fork()  # First of all: this process is still as it was started.
    try:
        connection = ControlConnection.connect(
            master, open_credentials(credentials), unanswered_ms_max=unanswered_ms_max
        )
        _Supervisor(
            connection, slot_index, spark_attempt, credentials, worker, forked, find_cgroup(root)
        ).run()
    finally:
        if forked is not None:
            forked.end()


class _Supervisor:
    def __init__(
        self,
        connection: ControlConnection,
        slot_index: int,
        spark_attempt: int,
        credentials: Credentials,
        worker: str,
        forked: TemplateProcess | None,
        cgroup: Cgroup | None,
    ) -> None:
        self._connection = connection
        self._slot_index = slot_index
        self._credentials = credentials
        self._worker_class = worker
        # Other slots can reach this one at the address from which it reaches the driver.
        self._host: str = connection.socket.getsockname()[0]
        self._master = Address(*connection.socket.getpeername()[:2])
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, self._on_master)
        self._job_id: JobId | None = None
        self._program: IO[bytes] | None = None
        self._forked = forked  # Waits for the program.
        self._template: _Template | None = None
        self._workers: list[_Worker] = []  # The last one serves, all before it are being killed.
        self._wanted: StartWorker | None = None  # Waits for the template.
        self._failure = ""  # Why this slot cannot serve at all.
        self._masker = Masker()  # Of the job's secrets.
        self._masked_stdout: MaskedPipe | None = None
        self._copies: LocalDirectory | None = None  # Of state files, from worker to worker.
        self._has_left = False
        self._is_released = False  # By the job master: the job needs nothing here any more.
        self._may_return = False  # Spark starts a task again that fails, and none that returns.
        self._connect_deadline = time.monotonic() + AUTHENTICATION_TIMEOUT_S
        self._heartbeat_due = 0.0
        self._cgroup = cgroup
        connection.send(
            SlotRegistered(
                slot_index,
                spark_attempt,
                self._host,
                os.getpid(),
                installed_versions(),
                None if self._cgroup is None else self._cgroup.memory(),
            )
        )

    def run(self) -> None:
        try:
            while not self._has_left:
                self._round()
        finally:
            self._release()
        if not self._may_return:
            raise SlotError("the connection to the job master was lost")

    def _round(self) -> None:
        wanted = selectors.EVENT_READ
        if self._connection.wants_write:
            wanted |= selectors.EVENT_WRITE
        if self._selector.get_key(self._connection).events != wanted:
            self._selector.modify(self._connection, wanted, self._on_master)
        self._select(min([self._heartbeat_due, *self._kill_times()]))
        now = time.monotonic()
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + HEARTBEAT_INTERVAL_S
            self._connection.send(SlotHeartbeat(self._slot_index))
            if not self._connection.authenticated and now > self._connect_deadline:
                raise SlotError(
                    f"the job master did not answer within {AUTHENTICATION_TIMEOUT_S:.0f} s"
                )
        for worker in self._workers:
            if worker.kill_at is not None and now >= worker.kill_at:
                worker.kill()

    def _select(self, until: float) -> None:
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            # Not if an earlier callback of this round has closed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def _kill_times(self) -> list[float]:
        return [worker.kill_at for worker in self._workers if worker.kill_at is not None]

    # The job master.

    def _on_master(self) -> None:
        self._connection.pump_out()
        for message in self._connection.pump_in():
            match message:
                case SlotAccepted():
                    self._accept(message)
                case StartWorker():
                    self._start_worker(message)
                case StopWorker(attempt, grace_ms):
                    self._stop_worker(attempt, grace_ms / 1000)
                case ReleaseSlot():
                    self._has_left = self._is_released = self._may_return = True
                case DismissSlot():
                    self._has_left = self._may_return = True
                    for worker in self._workers:
                        worker.kill()
                case _:
                    raise ProtocolError(f"{type(message).__name__} is no command for a slot")
        if self._connection.ended:
            self._has_left = True

    def _accept(self, accepted: SlotAccepted) -> None:
        if self._program is not None:
            raise ProtocolError("the slot was accepted twice")
        self._job_id = accepted.job_id
        self._masker = Masker(value for _, value in accepted.secrets)
        if self._masker:
            self._masked_stdout = MaskedPipe(self._masker, _STDERR)
        # In memory: the pipeline's code may hold the value of a secret.
        self._program = os.fdopen(os.memfd_create("weir-program"), "w+b")
        self._program.write(accepted.program)
        self._program.flush()
        if accepted.keeps_copies:
            try:
                self._copies = LocalDirectory(accepted.copies_directory, COPIES, accepted.job_id)
            except ConfigError as error:
                if not _is_for_want_of_space(error):
                    self._failure = f"on {self._host}: {error}"
                    self._fail(self._failure)
                    return
                logger.warning("the slot goes on without local copies: %s", error)
        self._start_template()

    def _start_worker(self, command: StartWorker) -> None:
        for worker in self._workers:
            worker.kill()
        self._wanted = command
        if self._failure:
            self._fail(self._failure)
        elif self._template is None and self._program is not None:
            self._start_template()  # The one before never loaded the pipeline.
        self._run_wanted()

    def _stop_worker(self, attempt: AttemptNumber, grace_s: float) -> None:
        if self._wanted is not None and self._wanted.attempt == attempt:
            self._wanted = None
        for worker in self._workers:
            if worker.attempt == attempt:
                worker.stop(time.monotonic() + grace_s)

    def _fail(self, cause: str) -> None:
        """Report that this slot cannot serve; the job master fails the job, or tries again."""
        self._wanted = None
        self._connection.send(SlotFailed(self._slot_index, self._masker.text(cause)))

    # The template.

    def _start_template(self) -> None:
        assert self._program is not None
        forked, self._forked = self._forked, None
        if forked is not None and forked.has_ended:
            forked.end()
            forked = None
        try:
            # Standard output of a Spark task belongs to Spark.
            stdout = _STDERR if self._masked_stdout is None else self._masked_stdout.fileno()
            self._template = template = _Template(
                forked, self._program, self._worker_class, self._masker, stdout, self._kills()
            )
        except OSError as error:
            self._not_loaded(1, f"cannot start a process on {self._host}: {error}")
            return
        self._selector.register(template.link, selectors.EVENT_READ, self._on_template)
        self._watch_stderr(template.stderr)

    def _on_template(self) -> None:
        if (template := self._template) is None:
            return
        for message in template.link.receive():
            self._on_template_message(template, message)
        if template.link.ended and self._template is template:
            self._on_template_ended(template)

    def _on_template_message(self, template: "_Template", message: TemplateMessage) -> None:
        match message:
            case TemplateReady():
                template.ready = True
                self._run_wanted()
            case ProgramFailed(cause):
                template.has_failed = True
                self._fail(
                    f"the pipeline cannot be loaded on {self._host}; the modules it imports have "
                    "to be installed there, or sent along (spark-submit --py-files, "
                    "sc.addPyFile):\n"
                    f"{cause}"
                )
            case WorkerStarted(attempt, pid, forked):
                worker = self._unstarted(attempt)
                worker.on_started(pid)
                if not forked:
                    self._detach(template)
                    worker.template = template
                    self._start_template()
            case WorkerEnded(pid, exit_code):
                worker = next(w for w in self._workers if w.pid == pid)
                self._on_worker_ended(worker, exit_code)
            case ForkFailed(attempt, cause):
                self._on_worker_ended(self._unstarted(attempt), 1, cause)
            case LoadProgram() | RunWorker():
                raise ProtocolError("the template sent a command")

    def _unstarted(self, attempt: AttemptNumber) -> "_Worker":
        return next(w for w in self._workers if w.attempt == attempt and w.pid is None)

    def _on_template_ended(self, template: "_Template") -> None:
        """The template ended: kill its workers, which it cannot reap now.

        Another is started at once where this one had loaded the pipeline, or a worker is wanted
        since it could not; else with the next command to start a worker.
        """
        self._detach(template)
        exit_code = template.end()
        cause = f"the template process of this slot died with exit code {exit_code}"
        for worker in [w for w in self._workers if w.template is None]:
            worker.kill()
            self._on_worker_ended(worker, -signal.SIGKILL, cause)
        while_loading = f"{cause} while it loaded the pipeline\n{template.stderr.tail}"
        if template.ready or (template.has_failed and self._wanted is not None):
            self._start_template()
        elif template.has_failed:
            return  # That was reported.
        elif exit_code in KILLS:
            self._not_loaded(exit_code, while_loading, template.kills_before)
        else:
            self._fail(while_loading)

    def _not_loaded(self, exit_code: int, cause: str, kills_before: int = 0) -> None:
        """No template loads the pipeline: the attempt fails, and the restart strategy decides.

        Where no worker is wanted yet, none is told: the next command starts another template.
        """
        logger.warning("%s", cause.partition("\n")[0])
        if self._wanted is not None:
            self._exited(self._wanted.attempt, 0, exit_code, cause, kills_before)
            self._wanted = None

    def _detach(self, template: "_Template") -> None:
        """Stop listening to a template that ended, or became a worker."""
        self._template = None
        self._selector.unregister(template.link)
        template.link.close()
        self._drop_stderr(template.stderr)

    # The workers.

    def _run_wanted(self) -> None:
        command, template = self._wanted, self._template
        if command is None or template is None or not template.ready:
            return
        assert self._job_id is not None
        run = RunWorker(
            command.attempt,
            command.credentials
            or derive_worker_credentials(self._credentials, command.attempt, command.plan_slot),
            self._job_id,
            command.plan_slot,
            self._host,
            self._master,
            command.memory,
            self._copies_for(command.plan_slot),
        )
        worker = _Worker(command.attempt, self._masker, self._kills())
        try:
            worker.hand_over(template.link, run)
        except OSError:  # The template has ended; the next one gets the command.
            worker.close()
            return
        self._wanted = None
        self._workers.append(worker)
        self._selector.register(
            worker.lifeline, selectors.EVENT_READ, lambda: self._on_lifeline(worker)
        )
        self._watch_stderr(worker.stderr)

    def _copies_for(self, plan_slot: int) -> str | None:
        """The directory of copies, with those of slots that were lost in this place; None: none."""
        if self._copies is None:
            return None
        try:
            self._copies.take_over(str(plan_slot))
        except OSError as error:
            logger.warning("the copies of lost slots are not taken over: %s", error)
        return str(self._copies.path)

    def _on_lifeline(self, worker: "_Worker") -> None:
        """The worker process closed its lifeline; a forked one is reported once reaped."""
        self._selector.unregister(worker.lifeline)
        if worker.template is not None:
            worker.kill()
            self._on_worker_ended(worker, worker.template.end())

    def _on_worker_ended(self, worker: "_Worker", exit_code: int, cause: str = "") -> None:
        self._workers.remove(worker)
        with suppress(KeyError):  # Its end was seen before.
            self._selector.unregister(worker.lifeline)
        self._drop_stderr(worker.stderr)
        worker.close()
        tail = "\n".join(text for text in (worker.stderr.tail, cause) if text)
        self._exited(worker.attempt, worker.pid or 0, exit_code, tail, worker.kills_before)

    def _exited(
        self, attempt: AttemptNumber, pid: int, exit_code: int, tail: str, kills_before: int
    ) -> None:
        is_killed = exit_code == -signal.SIGKILL and self._kills() > kills_before
        self._connection.send(
            WorkerExited(self._slot_index, attempt, pid, exit_code, tail, is_killed)
        )

    def _kills(self) -> int:
        """The kernel's kills in this slot's cgroup for want of memory, until now."""
        return 0 if self._cgroup is None else self._cgroup.kills()

    def _watch_stderr(self, stderr: "_Stderr") -> None:
        def pump() -> None:
            if not stderr.pump():
                self._selector.unregister(stderr)

        self._selector.register(stderr, selectors.EVENT_READ, pump)

    def _drop_stderr(self, stderr: "_Stderr") -> None:
        """Read the rest of the pipe; a process that user code started may hold it open."""
        stderr.pump()
        with suppress(KeyError):  # It ended before.
            self._selector.unregister(stderr)
        stderr.close()

    # The end.

    def _reap(self, until: float) -> None:
        while self._workers and time.monotonic() < until:
            self._select(until)

    def _release(self) -> None:
        """End all processes, reap them, and close all descriptors."""
        self._wanted = None
        # The connection may be the reason to leave, and must not keep the loop awake.
        self._selector.unregister(self._connection)
        if not self._connection.ended:  # The job is over: give operators time to close.
            stop_by = time.monotonic() + RELEASE_TIMEOUT_S
            for worker in self._workers:
                worker.stop(stop_by)
            self._reap(stop_by)
        for worker in self._workers:
            worker.kill()
        self._reap(time.monotonic() + RELEASE_TIMEOUT_S)
        for worker in self._workers:
            worker.close()
        if (template := self._template) is not None:
            self._detach(template)
            template.end()
        if self._copies is not None:
            # Unless the slot was released, this driver or the next one starts another.
            self._copies.leave(is_over=self._is_released)
        if self._program is not None:
            self._program.close()
        if self._masked_stdout is not None:
            self._masked_stdout.close(RELEASE_TIMEOUT_S)
        self._selector.close()
        if not self._connection.ended:
            self._connection.pump_out()
        self._connection.close()


def _is_for_want_of_space(error: ConfigError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


class _Template:
    """A template that loads the program, or has loaded it."""

    def __init__(
        self,
        forked: TemplateProcess | None,
        program: IO[bytes],
        worker: str,
        masker: Masker,
        stdout: int,
        kills_before: int,
    ) -> None:
        """Have ``forked`` load the program, or a process that is started for it.

        Raises:
            OSError: There is no room for another process or pipe.
        """
        self.ready = False
        self.has_failed = False  # To load the program; its end is to come.
        self.kills_before = kills_before  # By the kernel in this slot's cgroup.
        self.stderr = _Stderr(masker)
        try:
            self._process = forked or TemplateProcess.spawn(stdout, self.stderr.write_fd)
            self.link = self._process.link
            with suppress(OSError):  # It has ended, which its link shows.
                self.link.send(
                    LoadProgram(worker), (program.fileno(), stdout, self.stderr.write_fd)
                )
        except OSError:
            self.stderr.close()
            raise
        finally:
            self.stderr.close_write()

    def end(self) -> int:
        """End the process; its exit code."""
        return self._process.end()


class _Worker:
    """A worker process, from the request for it on."""

    def __init__(self, attempt: AttemptNumber, masker: Masker, kills_before: int) -> None:
        self.attempt = attempt
        self.kills_before = kills_before  # By the kernel in this slot's cgroup.
        self.pid: int | None = None
        self.template: _Template | None = None  # The template that became this worker.
        self.kill_at: float | None = None
        self.lifeline, self._their_lifeline = socket.socketpair()
        self.stderr = _Stderr(masker)
        self._pidfd: int | None = None

    def hand_over(self, link: TemplateLink, run: RunWorker) -> None:
        """Request the worker of the template, and close the worker's ends in this process."""
        try:
            link.send(run, (self._their_lifeline.fileno(), self.stderr.write_fd))
        finally:
            self._their_lifeline.close()
            self.stderr.close_write()

    def on_started(self, pid: int) -> None:
        """The worker process runs."""
        self.pid = pid
        with suppress(ProcessLookupError):  # It has ended, and even been reaped.
            self._pidfd = os.pidfd_open(pid)
        if self.kill_at is not None:
            self._signal(signal.SIGTERM)

    def stop(self, kill_at: float) -> None:
        """Ask the process to stop; it is killed at ``kill_at`` (monotonic) if it has not."""
        self.kill_at = kill_at
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill its process group, now or as soon as it exists. May be repeated."""
        self.kill_at = None
        with suppress(OSError):  # It is shut down already.
            self.lifeline.shutdown(socket.SHUT_RDWR)
        self._signal(signal.SIGKILL)  # In case user code closed the descriptor.

    def close(self) -> None:
        """Close all descriptors, which kills a process that still runs."""
        self.kill()
        self.lifeline.close()
        self.stderr.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self.template is not None:
            self.template.end()

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):  # It has ended.
                signal.pidfd_send_signal(self._pidfd, number)


class _Stderr:
    """A pipe for the standard error of a process: passed on masked, and its tail kept."""

    def __init__(self, masker: Masker) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._masking = masker.stream()
        self._kept = b""

    def fileno(self) -> int:
        return self._read_fd

    @property
    def tail(self) -> str:
        """The last text that the process wrote."""
        self._pass_on(self._masking.flush())
        return self._kept.decode(errors="replace")

    def pump(self) -> bool:
        """Pass on the bytes in the pipe; False: the pipe has ended."""
        try:
            data = os.read(self._read_fd, 1 << 16)  # A pipe holds no more.
        except BlockingIOError:
            return True
        self._pass_on(self._masking.feed(data) if data else self._masking.flush())
        return bool(data)

    def _pass_on(self, data: bytes) -> None:
        if data:
            os.write(_STDERR, data)
            self._kept = (self._kept + data)[-STDERR_TAIL_BYTES:]

    def close_write(self) -> None:
        """Close the process's end here. May be repeated."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        """Close both ends. May be repeated."""
        self.close_write()
        if self._read_fd >= 0:
            os.close(self._read_fd)
            self._read_fd = -1
