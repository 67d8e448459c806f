"""``weir savepoint`` and ``weir stop``: request a savepoint of a running job, and wait for it.

The job is another process, perhaps on another machine; the two meet in the checkpoint storage
(``weir.jobmaster.savepoint_mailbox``). Standard output gets the savepoint's URI and nothing else;
progress goes to standard error.
"""

import secrets
import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.status import Status

from weir.cli import formats
from weir.cli.output import console
from weir.cli.uri import absolute, find_place, jobs_in
from weir.errors import ConfigError, RestoreError, StorageError, WeirError
from weir.ids import JobId
from weir.jobmaster.savepoint_mailbox import Answer, Mailbox, SavepointRequest
from weir.protocol.elements import CheckpointKind
from weir.storage import savepoint_names
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout, savepoint_location
from weir.storage.manifest import Manifest, load
from weir.storage.store import CheckpointStore, PathNotFoundError, store_for

TAKEN, FAILED, UNANSWERED = 0, 1, 3

LOOK_S = 0.2
UNTAKEN_WARNING_S = 10.0  # A driver looks every second or so; it may be starting Spark.
END_WAIT_S = 60.0  # For the job's end after its savepoint, at least.
_JOBS_NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """A running job, and the savepoint requested of it."""

    storage: str
    store: CheckpointStore
    job: JobId
    kind: CheckpointKind
    target: str


class Telling:
    """Progress on standard error: a line per change, and in a terminal the seconds waited."""

    def __init__(self) -> None:
        self._screen = console(sys.stderr)
        self._status: Status | None = None
        self._since = time.monotonic()
        self._waits_for = ""

    def say(self, text: str) -> None:
        """Print a line."""
        self._screen.print(f"weir: {text}", soft_wrap=True)

    def wait_for(self, what: str) -> None:
        """Count the seconds of waiting for ``what``, from now."""
        self._waits_for, self._since = what, time.monotonic()

    def tick(self) -> None:
        """Show the seconds waited so far."""
        if self._status is not None:
            waited_s = int(time.monotonic() - self._since)
            self._status.update(f"waiting for {self._waits_for} ({waited_s} s)")

    def __enter__(self) -> Self:
        if self._screen.is_terminal:
            self._status = self._screen.status("")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def run(arguments: Namespace, kind: CheckpointKind) -> int:
    """Take a savepoint of the job, or stop it with one, and return the exit code.

    Raises:
        UserError: The arguments are wrong; nothing was requested.
        StorageError: The storage failed.
    """
    asked = _asked(arguments, kind)
    deadline = time.monotonic() + arguments.timeout / 1_000
    with Telling() as telling:
        answer = _ask(asked, arguments.timeout, deadline, telling)
        if answer is None:
            return UNANSWERED
        if not answer.ok:
            telling.say(answer.error)
            if answer.uri:
                telling.say(f"the savepoint was taken and is kept: {answer.uri}")
            return FAILED
        telling.say(_described(answer.uri, asked.job))
        if kind is CheckpointKind.SAVEPOINT:
            code = TAKEN
        else:
            deadline = max(deadline, time.monotonic() + END_WAIT_S)
            try:
                code = _wait_for_end(asked, answer.uri, deadline, telling)
            except BaseException:  # Ctrl-C above all: the job ends all the same.
                telling.say(f"the savepoint was taken and is kept: {answer.uri}")
                raise
    print(answer.uri)
    return code


def checked_name(name: str) -> str:
    """``name``, checked to be a valid savepoint name.

    Raises:
        ConfigError: The name is invalid.
    """
    if problem := savepoint_names.problem_with(name):
        raise ConfigError(f"a savepoint cannot be named {name!r}: {problem}")
    return name


def _asked(arguments: Namespace, kind: CheckpointKind) -> Asked:
    place = find_place(arguments.job)
    if place.checkpoint is not None:
        raise RestoreError(
            f"{arguments.job} is a checkpoint; give the job's directory, "
            f"{place.storage}/{JobLayout(place.job or JobId('')).directory}"
        )
    if place.job is None:
        jobs = sorted(jobs_in(place.store))
        named = ", ".join(
            f"{place.storage}/{JobLayout(job).directory}" for job in jobs[:_JOBS_NAMED_MAX]
        )
        more = "" if len(jobs) <= _JOBS_NAMED_MAX else f" and {len(jobs) - _JOBS_NAMED_MAX} more"
        advice = f"give one of {named}{more}" if jobs else "it holds no job"
        raise RestoreError(f"{arguments.job} is not the directory of one job; {advice}")
    if place.store.exists(JobLayout(place.job).finished):
        raise RestoreError(f"job {place.job} has finished; there is nothing to take a savepoint of")
    if arguments.name is None:
        name = savepoint_names.default_name(place.job, time.time())
    else:
        name = checked_name(arguments.name)
    if arguments.to is None:
        target = savepoint_location(place.storage, place.job, name)
    else:
        target = f"{absolute(arguments.to)}/{name}"
    if store_for(target).list():
        raise ConfigError(f"{target} is in use; choose another --name, or another place with --to")
    return Asked(place.storage, place.store, place.job, kind, target)


def _ask(asked: Asked, timeout_ms: int, deadline: float, telling: Telling) -> Answer | None:
    """Post the request and wait for its answer; None: none came in time."""
    mailbox = Mailbox(asked.store, asked.job)
    expires_ms = time.time_ns() // 1_000_000 + timeout_ms
    request_id = secrets.token_hex(8)
    try:
        mailbox.post(SavepointRequest(request_id, asked.kind, asked.target, expires_ms))
        telling.say(f"requested from job {asked.job}: {_wanted(asked.kind)}")
        telling.wait_for("the job's driver to take the request")
        return _await(asked, mailbox, request_id, deadline, telling)
    except KeyboardInterrupt:
        telling.say(_withdrawn(asked, was_taken=mailbox.was_taken(request_id)))
        raise
    finally:
        try:
            mailbox.withdraw(request_id)
        except StorageError as error:
            telling.say(f"the request could not be withdrawn; it expires by itself: {error}")


def _await(
    asked: Asked, mailbox: Mailbox, request_id: str, deadline: float, telling: Telling
) -> Answer | None:
    started, was_taken, is_warned = time.monotonic(), False, False
    while True:
        if not was_taken and mailbox.was_taken(request_id):
            was_taken = True
            telling.say("the driver has taken the request")
            telling.wait_for("the savepoint")
        has_finished = asked.store.exists(JobLayout(asked.job).finished)
        now = time.monotonic()
        # In this order: an answer given before the job ended, or the time ran out, is read.
        if (answer := mailbox.await_answer(request_id)) is not None:
            return answer if answer.ok else _saved(asked) or answer
        if has_finished or now >= deadline:
            # A driver that ended before it answered may have left the savepoint all the same.
            if (saved := _saved(asked)) is not None:
                return saved
            if has_finished:
                return Answer(request_id, ok=False, error="the job finished before its savepoint")
            telling.say(_nothing_came(asked, was_taken=was_taken))
            return None
        if not was_taken and not is_warned and now - started >= UNTAKEN_WARNING_S:
            is_warned = True
            telling.say(_untaken(asked))
        telling.tick()
        time.sleep(LOOK_S)


def _saved(asked: Asked) -> Answer | None:
    """The requested savepoint, if it completed although no driver answered so.

    Its directory was free when the request was posted. The driver that wrote it may have ended
    before it could answer, and the next one found the directory in use.
    """
    try:
        data = store_for(asked.target).read(SAVEPOINT_MANIFEST)
        copy = load(data, f"{asked.target}/{SAVEPOINT_MANIFEST}")
        if not isinstance(copy, Manifest) or (copy.job_id, copy.kind) != (asked.job, asked.kind):
            return None
        path = JobLayout(asked.job).manifest(copy.checkpoint_id)
        decided = load(asked.store.read(path), path)  # Without it the savepoint did not complete.
    except PathNotFoundError:
        return None
    if not isinstance(decided, Manifest) or decided.attempt != copy.attempt:
        return None
    return Answer("", ok=True, uri=asked.target)


def _wait_for_end(asked: Asked, uri: str, deadline: float, telling: Telling) -> int:
    """Wait until the job, whose savepoint is taken, has ended."""
    layout = JobLayout(asked.job)
    telling.wait_for("the job to end")
    attempts = len(asked.store.list(layout.attempts))
    while not asked.store.exists(layout.finished):
        if len(asked.store.list(layout.attempts)) > attempts:
            attempts += 1
            telling.say("the stopping attempt failed; the next attempt completes the stop")
        if time.monotonic() >= deadline:
            telling.say(
                "the job has its savepoint but has not ended; its next attempt ends it, unless "
                "the job failed: see the driver's output. The savepoint was taken and is kept: "
                f"{uri}"
            )
            return FAILED
        telling.tick()
        time.sleep(LOOK_S)
    telling.say("the job has ended")
    return TAKEN


def _wanted(kind: CheckpointKind) -> str:
    match kind:
        case CheckpointKind.STOP_SUSPEND:
            return "a stop with a savepoint"
        case CheckpointKind.STOP_DRAIN:
            return "a stop with a savepoint after its sources are drained"
        case _:
            return "a savepoint"


def _untaken(asked: Asked) -> str:
    return (
        f"no driver has taken the request for {UNTAKEN_WARNING_S:g} s. Either the job does not "
        f"run, or it keeps its checkpoints elsewhere than in {asked.storage}, or it is just "
        "starting, or a control plane runs it: then use the control plane's page or API. Still "
        "waiting; Ctrl-C withdraws the request"
    )


def _nothing_came(asked: Asked, *, was_taken: bool) -> str:
    if not was_taken:
        return (
            "no driver has taken the request in time, and it is withdrawn; job "
            f"{asked.job} is not affected"
        )
    return (
        "the savepoint did not complete in time. The driver has taken the request and may still "
        f"complete it: in {asked.target}"
    )


def _withdrawn(asked: Asked, *, was_taken: bool) -> str:
    if not was_taken:
        return "the request is withdrawn"
    return (
        "the driver has taken the request and still executes it; the savepoint will be in "
        f"{asked.target}"
    )


def _described(uri: str, job: JobId) -> str:
    """The line about the savepoint; it says so if this machine cannot read the savepoint."""
    try:
        manifest = load(store_for(uri).read(SAVEPOINT_MANIFEST), f"{uri}/{SAVEPOINT_MANIFEST}")
    except WeirError as error:
        return f"the savepoint is taken, but cannot be read from this machine: {error}"
    if not isinstance(manifest, Manifest):
        return "the savepoint is taken"
    took = formats.duration(manifest.completed_ms - manifest.triggered_ms)
    return (
        f"the savepoint of job {job} is taken: checkpoint {manifest.checkpoint_id}, "
        f"{formats.size(manifest.state_size)}, in {took}"
    )
