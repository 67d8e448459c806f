"""Operations that processes of their own work out: previews of a restore, comparisons of output.

A preview runs the pipeline's script, which is code of its author, so its process gets what a driver
gets: an environment without secrets, a session that is ended as a whole, and a deadline. The
launcher starts the processes and checks them once a second; no thread waits for one.

Like a driver, a process is identified by machine, boot, pid and start time, which are in the
operation's ``progress``. It is claimed, started and noted, as a driver is::

    {tries} ── claimed ──> {host, boot, until, tries, claim} ── started ──> {…, processes}

A restarted launcher goes on with its predecessor's processes; where a launcher died before it had
noted the processes, or with its machine, the operation starts again.

``<WEIR_DRIVERS>/answers/<operation>/<try>/`` belongs to the launcher. It holds the arguments of the
processes (mode 0600), what they print, of which they have descriptors, and ``work``, where they
work. Files are read and written, and processes started, outside of transactions.
"""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from controlplane.base import clock, logs, watchdog
from jobs import hooks, operations
from jobs.drivers import driver_files, processes, user_processes
from jobs.drivers.driver_account import (
    create_log,
    driver_account,
    launchers_directory,
    private_directory,
    write_private,
)
from jobs.drivers.handed_secrets import handed_secrets
from jobs.drivers.spark_command import environment_of
from jobs.models import OPEN_OPERATIONS, Artifact, Job, Operation, OperationKind, PipelineKind
from jobs.storable_text import storable, storable_json
from jobs.uploads import path_of
from weir.untrusted_files import UntrustedFileError, open_regular, read, read_whole

logger = logging.getLogger(__name__)

RUNNING_MAX = 2  # Operations at once on one machine; the others wait.
TRIES_MAX = 2  # A lost operation is started once more.
WAITING_MS = 60_000  # For a free process, beside the time for the answer itself.
OUTPUTS_MAX = 8  # Processes of one operation.
ANSWER_BYTES_MAX = 1 << 20
NOTED_WITHIN_MS = 15_000  # From a claim to the note of the processes, which takes milliseconds.
SAMPLES = 20  # Rows of each kind in a comparison.
_SAID_MAX = 4_000

_T = TypeVar("_T")
_children: list["subprocess.Popen[bytes]"] = []  # To be reaped, which only their parent can.


def time_ms() -> int:
    """The time that an operation has until its answer is there."""
    return int(TRIES_MAX * settings.WEIR_PREVIEW_TIMEOUT_MS + WAITING_MS)


def tick() -> None:
    """Check the operations of this machine, then take up waiting ones."""
    _children[:] = [child for child in _children if child.poll() is None]
    asked = Operation.objects.filter(_IN_PROCESSES).order_by("created_at")
    for pk in list(asked.filter(_here()).values_list("pk", flat=True)):
        with logs.guarding(logger, _PROBLEM, operation=str(pk)):
            _look(pk)
    under_way = asked.filter(_here()).count()
    waiting = asked.filter(status__in=OPEN_OPERATIONS).filter(_UNCLAIMED)
    for pk in list(waiting.values_list("pk", flat=True)[: max(0, RUNNING_MAX - under_way)]):
        watchdog.came_round()
        with logs.guarding(logger, _PROBLEM, operation=str(pk)):
            _take_up(pk)
    user_processes.reap()


_PROBLEM = "the preview or comparison could not be checked; the next tick tries again"
_ARGUMENTS = "arguments.json"
_IN_PROCESSES = Q(kind=OperationKind.COMPARE) | Q(
    kind=OperationKind.PREVIEW, parameters__kind="restore"
)
_UNCLAIMED = Q(progress__isnull=True) | Q(progress__boot__isnull=True)


def _here() -> Q:
    """The operations of this machine and boot; containers on one machine share its boot."""
    return Q(progress__host=processes.host_name(), progress__boot=processes.boot_id())


def forget_lost() -> int:
    """Queue the operations of machines that are away for too long again; return their number."""
    now = clock.now()
    asked = Operation.objects.filter(_IN_PROCESSES, status__in=OPEN_OPERATIONS)
    asked = asked.exclude(_UNCLAIMED).exclude(_here())
    late = [o for o in asked if _until(o.progress) + clock.milliseconds(NOTED_WITHIN_MS) < now]
    for operation in late:
        with logs.guarding(logger, _PROBLEM, operation=str(operation.pk)):
            _each(operation.pk, _ask_again)
    return len(late)


def _each(pk: UUID, act: Callable[[Operation], _T]) -> _T | None:
    """Act on an operation under its lock, in a transaction of its own; None where locked."""
    with transaction.atomic():
        claim = Operation.objects.filter(pk=pk).select_for_update(skip_locked=True, of=("self",))
        operation = claim.first()
        if operation is None:
            return None
        with logs.about(job=operation.job_id):
            return act(operation)


# Starting -----------------------------------------------------------------------------------------


def _take_up(pk: UUID) -> None:
    """Start an operation's processes, and note them."""
    operation = _each(pk, _claim)
    if operation is None:
        return
    started: list[list[float]] = []
    try:
        _start_all(operation, started)
        is_noted = _each(pk, lambda row: _note(row, operation, started))
    except Exception as error:
        _end_all(started)
        logger.exception("the processes of operation %s could not be started", pk)
        text = f"its process could not be started: {error}"
        _each(pk, lambda row: _give_up(row, text))
        return
    except BaseException:
        _end_all(started)
        raise
    if not is_noted:  # It ended meanwhile, or is locked: the claim runs out.
        _end_all(started)


def _claim(operation: Operation) -> Operation | None:
    """Claim an operation for this launcher; None where it is another's or over."""
    progress = operation.progress or {}
    if operation.status not in OPEN_OPERATIONS or progress.get("boot") is not None:
        return None
    tries = int(progress.get("tries", 0)) + 1
    if tries > TRIES_MAX:
        operations.fail(operation, f"the process of the operation was lost {TRIES_MAX} times")
        return None
    operations.start(operation)
    now = clock.now()
    until = now + clock.milliseconds(settings.WEIR_PREVIEW_TIMEOUT_MS)
    claim = {
        "host": processes.host_name(),
        "boot": processes.boot_id(),
        "until": until.isoformat(),
        "tries": tries,
        "claim": (now + clock.milliseconds(NOTED_WITHIN_MS)).isoformat(),
    }
    _save(operation, claim)
    return operation


def _start_all(operation: Operation, started: list[list[float]]) -> None:
    """Start the processes of a claimed operation; ``started`` gets pid and start time of each."""
    account = driver_account()
    commands = commands_of(operation)
    directory = _directory(operation) / str((operation.progress or {})["tries"])
    driver_files.root().mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (driver_files.root(), directory.parent.parent, directory.parent, directory):
        launchers_directory(path, account)
    work = directory / "work"
    private_directory(work, account)
    options = operation.parameters.get("options", {})
    parameters, names = options.get("parameters", {}), options.get("secrets", ())
    owner = None if account is None else (account.uid, account.groups[0])
    write_private(directory / _ARGUMENTS, json.dumps(parameters), account)
    for number, command in enumerate(commands):
        with ExitStack() as opened:
            output, errors = (
                create_log(directory / f"{number}.{kind}", account) for kind in ("out", "err")
            )
            for handle in (output, errors):
                opened.callback(os.close, handle)
            handed = opened.enter_context(handed_secrets(names, owner))
            child = user_processes.start(
                command,
                note=directory / f"{number}.json",
                cwd=work,
                output=output,
                errors=errors,
                environment={**environment_of(_mark(operation)), **handed.environment},
                account=account,
                descriptors=handed.descriptors,
            )
        _children.append(child)
        process = processes.find(child.pid)
        assert process is not None  # At worst a zombie: only this process reaps it.
        logger.info("%s %s is process %d", operation.kind, operation.pk, child.pid)
        started.append([child.pid, process.started_at])


def _note(row: Operation, claimed: Operation, started: list[list[float]]) -> bool:
    """Note the processes of a claim that still stands."""
    if row.status not in OPEN_OPERATIONS or row.progress != claimed.progress:
        return False
    progress = {name: value for name, value in (row.progress or {}).items() if name != "claim"}
    _save(row, {**progress, "processes": started})
    return True


def _give_up(row: Operation, text: str) -> None:
    if row.status in OPEN_OPERATIONS:
        operations.fail(row, text)
    _save(row, None)


def _end_all(started: Iterable[Sequence[float]]) -> None:
    for pid, started_at in started:
        processes.end_session(int(pid), started_at, signal.SIGKILL)


def commands_of(operation: Operation) -> list[list[str]]:
    """The command lines of an operation; each prints one JSON document."""
    given: dict[str, Any] = operation.parameters
    weir = [settings.WEIR_SPARK_PYTHON or sys.executable, "-m", "weir"]
    if operation.kind == OperationKind.COMPARE:
        columns = [f"--key={column}" for column in given["keys"]]
        columns += [f"--window={column}" for column in given["windows"]]
        flags = [*columns, f"--limit={SAMPLES}", "--json"]
        return [
            [*weir, "compare", *flags, "--", pair["left"], pair["right"]]
            for pair in given["outputs"]
        ]
    options = given["options"]
    flags = [f"--restore={given['restore']}", "--json"]
    if options.get("parallelism") is not None:
        flags.append(f"--parallelism={options['parallelism']}")
    for name in ("allow_non_restored_state", "allow_pickled_state"):
        if options.get(name):
            flags.append(f"--{name.replace('_', '-')}")
    origin = given.get("origin")
    if origin is not None and Job.objects.get(pk=origin).is_over:
        flags.append("--origin-is-over")
    if options.get("parameters"):  # All users of a machine can read command lines.
        flags.append(f"--args-file=../{_ARGUMENTS}")
    return [[*weir, "preview", *flags, "--", _pipeline(given["pipeline"])]]


def _pipeline(given: dict[str, Any]) -> str:
    if given["kind"] == PipelineKind.UPLOAD:
        return str(path_of(Artifact(digest=given["artifact_digest"])))
    return str(given["target"])


# Checking -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The end of an operation's processes: their documents, or an error; neither: it had ended."""

    error: str = ""
    documents: tuple[dict[str, Any], ...] = ()
    is_lost: bool = False  # No launcher noted the processes.


def _look(pk: UUID) -> None:
    """Conclude an operation whose processes are done, are late, or printed too much."""
    operation = Operation.objects.filter(pk=pk).first()
    if operation is None or operation.progress is None:
        return
    seen: dict[str, Any] = operation.progress
    known = [(int(pid), float(started_at)) for pid, started_at in seen.get("processes", ())]
    if "processes" not in seen and (now := clock.now()) >= _until_claim(seen, now):
        known = _unnoted(operation)
    left = [process for process in known if processes.session_of(*process)]
    outcome = _outcome(operation, known, left)
    if outcome is None:
        return

    def conclude(row: Operation) -> bool:
        if row.progress != seen:
            return False
        _conclude(row, outcome)
        # Processes that a script has left behind in its session are ended as well.
        _end_all(left)
        _save(row, {"tries": seen.get("tries", 0)} if outcome.is_lost else None)
        return True

    if _each(pk, conclude) and not outcome.is_lost:
        user_processes.remove(_directory(operation))


def _outcome(
    operation: Operation, known: Sequence[tuple[int, float]], left: Sequence[tuple[int, float]]
) -> _Outcome | None:
    """The end of an operation's processes; None: they go on."""
    progress: dict[str, Any] = operation.progress or {}
    if operation.status not in OPEN_OPERATIONS:
        return _Outcome()
    if "processes" not in progress:
        is_over = clock.now() >= _until_claim(progress, clock.now())
        return _Outcome(is_lost=True) if is_over else None
    if left and clock.now() >= _until(progress):
        timeout_s = settings.WEIR_PREVIEW_TIMEOUT_MS / 1_000
        return _Outcome(f"its process was not done within {timeout_s:g} s, and was ended")
    if _size(operation, len(known)) > ANSWER_BYTES_MAX:
        limit = f"{ANSWER_BYTES_MAX >> 20} MiB"
        return _Outcome(f"its process printed more than {limit}, and was ended")
    if any(processes.is_running(*process) for process in known):
        return None
    answers = [_answer(operation, number) for number in range(len(known))]
    failed = [said for answer, said in answers if answer is None]
    if failed:
        return _Outcome(failed[0])
    return _Outcome(documents=tuple(answer for answer, _ in answers if answer is not None))


def _conclude(operation: Operation, outcome: _Outcome) -> None:
    if operation.status not in OPEN_OPERATIONS:
        return
    if outcome.is_lost:
        logger.warning("%s %s is started again: its launcher died", operation.kind, operation.pk)
    elif outcome.error:
        operations.fail(operation, outcome.error)
    elif operation.kind == OperationKind.COMPARE:
        outputs = [
            {"operator": pair["operator"], **answer}
            for pair, answer in zip(operation.parameters["outputs"], outcome.documents, strict=True)
        ]
        other = operation.parameters["other"]
        more = hooks.checkpoints.compare(operation.job, other)
        operations.succeed(operation, {"outputs": outputs, **more})
    else:
        operations.succeed(operation, outcome.documents[0])


def _answer(operation: Operation, number: int) -> tuple[dict[str, Any] | None, str]:
    """The document that a process printed, or the reason why it printed none."""
    printed, said = (_file(operation, number, kind) for kind in ("out", "err"))
    root = driver_files.root()
    try:
        document = json.loads(read_whole(printed, below=root, bytes_max=ANSWER_BYTES_MAX))
        if isinstance(document, dict):
            answer: dict[str, Any] = storable_json(document)
            return answer, ""
    except UntrustedFileError as error:
        return None, f"its answer was not read, because {error.problem}"
    except (OSError, ValueError, RecursionError) as error:
        logger.info("process %d printed no JSON document: %s", number, error)
    try:
        with open_regular(said, below=root) as file:
            size = os.fstat(file.fileno()).st_size
            text = read(file, _SAID_MAX, offset=max(0, size - _SAID_MAX)).decode(errors="replace")
    except UntrustedFileError as error:
        return None, f"its errors were not read, because {error.problem}"
    except OSError as error:
        logger.info("the errors of process %d cannot be read: %s", number, error)
        text = ""
    return None, storable(text).strip() or "the process ended without a result; was it killed?"


def _ask_again(operation: Operation) -> None:
    if operation.progress is not None and operation.status in OPEN_OPERATIONS:
        logger.warning("%s %s is started again: its machine is away", operation.kind, operation.pk)
        _save(operation, {"tries": operation.progress.get("tries", 0)})


def _unnoted(operation: Operation) -> list[tuple[int, float]]:
    """Processes whose launcher was killed before it could note them, as their notes say."""
    root = driver_files.root()
    notes = (_file(operation, number, "json") for number in range(OUTPUTS_MAX))
    named = (user_processes.noted(note, root) for note in notes)
    return [(process.pid, process.started_at) for process in named if process is not None]


def _save(operation: Operation, progress: dict[str, Any] | None) -> None:
    operation.progress = progress
    Operation.objects.filter(pk=operation.pk).update(progress=progress)


def _size(operation: Operation, count: int) -> int:
    """The bytes of the longest answer; what is no file has none, and is refused when it is read."""
    longest = 0
    for number in range(count):
        try:
            path = _file(operation, number, "out")
            with open_regular(path, below=driver_files.root()) as file:
                longest = max(longest, os.fstat(file.fileno()).st_size)
        except OSError as error:
            logger.debug("the answer of process %d has no size: %s", number, error)
    return longest


def _until_claim(progress: dict[str, Any], now: datetime) -> datetime:
    """The end of a claim, by which its processes are noted."""
    claim = progress.get("claim")
    return now if claim is None else datetime.fromisoformat(claim)


def _until(progress: dict[str, Any] | None) -> datetime:
    return datetime.fromisoformat((progress or {})["until"])


def _file(operation: Operation, number: int, kind: str) -> Path:
    tries = (operation.progress or {}).get("tries", 0)
    return _directory(operation) / str(tries) / f"{number}.{kind}"


def _directory(operation: Operation) -> Path:
    return driver_files.root() / "answers" / str(operation.pk)


def _mark(operation: Operation) -> str:
    return f"operation/{operation.pk}"


def outputs_of(job: Job) -> dict[str, str]:
    """The directories that a job's file sinks commit to, by operator."""
    known = job.operators.exclude(files=None).order_by("position")
    return {uid: files or "" for uid, files in known.values_list("uid", "files")}
