"""Operations that processes of their own work out: previews of a restore, comparisons of output.

A preview runs the pipeline's script, which is code of its author, so its process gets what a driver
gets: an environment without secrets, a session that is ended as a whole, and a deadline. The
launcher starts the processes and checks them once a second; no thread waits for one.

Like a driver, a process is identified by machine, boot, pid and start time, which are in the
operation's ``progress``. A restarted launcher goes on with its predecessor's processes; where a
launcher died before it had noted the processes, or with its machine, the operation starts again.
"""

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from controlplane.base import clock, logs
from jobs import operations
from jobs.drivers import driver_files, processes
from jobs.drivers.spark_command import environment_of
from jobs.models import OPEN_OPERATIONS, Artifact, Job, Operation, OperationKind, PipelineKind
from jobs.signals import jobs_compared
from jobs.storable_text import storable, storable_json
from jobs.uploads import path_of

logger = logging.getLogger(__name__)

RUNNING_MAX = 2  # Operations at once on one machine; the others wait.
TRIES_MAX = 2  # A lost operation is started once more.
OUTPUTS_MAX = 8  # Processes of one operation.
ANSWER_BYTES_MAX = 1 << 20
NOTED_WITHIN_MS = 15_000  # From a claim to the note of the processes, which takes milliseconds.
SAMPLES = 20  # Rows of each kind in a comparison.
_SAID_MAX = 4_000

_children: list["subprocess.Popen[bytes]"] = []  # To be reaped, which only their parent can.


def tick() -> None:
    """Check the operations of this machine, then take up waiting ones."""
    _children[:] = [child for child in _children if child.poll() is None]
    asked = Operation.objects.filter(_IN_PROCESSES).order_by("created_at")
    for pk in list(asked.filter(_here()).values_list("pk", flat=True)):
        _each(pk, _look)
    under_way = asked.filter(_here()).count()
    waiting = asked.filter(status__in=OPEN_OPERATIONS).filter(_UNCLAIMED)
    for pk in list(waiting.values_list("pk", flat=True)[: max(0, RUNNING_MAX - under_way)]):
        _each(pk, _take_up)


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
        _each(operation.pk, _ask_again)
    return len(late)


def _each(pk: UUID, act: Callable[[Operation], None]) -> None:
    """Act on an operation under its lock, in a transaction of its own; skip it where locked."""
    problem = "the preview or comparison could not be checked; the next tick tries again"
    with logs.guarding(logger, problem, operation=str(pk)), transaction.atomic():
        claim = Operation.objects.filter(pk=pk).select_for_update(skip_locked=True, of=("self",))
        operation = claim.first()
        if operation is not None:
            with logs.about(job=operation.job_id):
                act(operation)


# Starting -----------------------------------------------------------------------------------------


def _take_up(operation: Operation) -> None:
    """Start an operation's processes, which the commit of the transaction notes."""
    progress = operation.progress or {}
    if operation.status not in OPEN_OPERATIONS or progress.get("boot") is not None:
        return
    tries = int(progress.get("tries", 0)) + 1
    if tries > TRIES_MAX:
        operations.fail(operation, f"the process of the operation was lost {TRIES_MAX} times")
        return
    _end_unnoted(operation)
    operations.start(operation)
    now = clock.now()
    until = now + clock.milliseconds(settings.WEIR_PREVIEW_TIMEOUT_MS)
    directory = _directory(operation)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    noted: list[list[float]] = []
    try:
        for number, command in enumerate(commands_of(operation)):
            noted.append(_start(operation, directory, number, command))
        _save(
            operation,
            {
                "host": processes.host_name(),
                "boot": processes.boot_id(),
                "processes": noted,
                "until": until.isoformat(),
                "tries": tries,
            },
        )
    except BaseException:
        # Without the note no launcher would find the processes again.
        for pid, started_at in noted:
            processes.end_session(int(pid), started_at, signal.SIGKILL)
        raise


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
    flags += [f"--arg={name}={value}" for name, value in options.get("parameters", {}).items()]
    return [[*weir, "preview", *flags, "--", _pipeline(given["pipeline"])]]


def _pipeline(given: dict[str, Any]) -> str:
    if given["kind"] == PipelineKind.UPLOAD:
        return str(path_of(Artifact(digest=given["artifact_digest"])))
    return str(given["target"])


def _start(
    operation: Operation, directory: Path, number: int, command: Sequence[str]
) -> list[float]:
    with (
        (directory / f"{number}.out").open("wb") as answer,
        (directory / f"{number}.err").open("wb") as said,
    ):
        child = subprocess.Popen(
            command,
            env=environment_of(_mark(operation)),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=said,
            start_new_session=True,
        )
    _children.append(child)
    process = processes.find(child.pid)
    assert process is not None  # At worst a zombie: only this process reaps it.
    logger.info("%s %s is process %d", operation.kind, operation.pk, child.pid)
    return [child.pid, process.started_at]


# Checking -----------------------------------------------------------------------------------------


def _look(operation: Operation) -> None:
    """Conclude an operation whose processes are done, are late, or printed too much."""
    progress: dict[str, Any] = operation.progress or {}
    known = [(int(pid), float(started_at)) for pid, started_at in progress.get("processes", ())]
    left = [process for process in known if processes.session_of(*process)]
    timeout_s = settings.WEIR_PREVIEW_TIMEOUT_MS / 1_000
    if operation.status not in OPEN_OPERATIONS:
        _leave(operation, left)
    elif left and clock.now() >= _until(progress):
        _leave(operation, left)
        operations.fail(
            operation, f"its process was not done within {timeout_s:g} s, and was ended"
        )
    elif _size(operation) > ANSWER_BYTES_MAX:
        _leave(operation, left)
        limit = f"{ANSWER_BYTES_MAX >> 20} MiB"
        operations.fail(operation, f"its process printed more than {limit}, and was ended")
    elif not any(processes.is_running(*process) for process in known):
        # Processes that a script has left behind in its session are ended as well.
        _conclude(operation, len(known))
        _leave(operation, left)


def _conclude(operation: Operation, count: int) -> None:
    answers = [_answer(operation, number) for number in range(count)]
    failed = [said for answer, said in answers if answer is None]
    if failed:
        operations.fail(operation, failed[0])
        return
    documents = [answer for answer, _ in answers if answer is not None]
    if operation.kind == OperationKind.COMPARE:
        outputs = [
            {"operator": pair["operator"], **answer}
            for pair, answer in zip(operation.parameters["outputs"], documents, strict=True)
        ]
        other = operation.parameters["other"]
        more = jobs_compared.send(sender=Job, job=operation.job, other=other)
        operations.succeed(operation, {"outputs": outputs, **_merged(a for _, a in more)})
    else:
        operations.succeed(operation, documents[0])


def _merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _answer(operation: Operation, number: int) -> tuple[dict[str, Any] | None, str]:
    """The document that a process printed, or the reason why it printed none."""
    directory = _directory(operation)
    try:
        document = json.loads((directory / f"{number}.out").read_bytes())
        if isinstance(document, dict):
            answer: dict[str, Any] = storable_json(document)
            return answer, ""
    except (OSError, ValueError, RecursionError) as error:
        logger.info("process %d printed no JSON document: %s", number, error)
    try:
        said = (directory / f"{number}.err").read_bytes()[-_SAID_MAX:].decode(errors="replace")
    except OSError:
        said = ""
    return None, storable(said).strip() or "the process ended without a result; was it killed?"


def _leave(operation: Operation, left: Sequence[tuple[int, float]]) -> None:
    """End an operation's processes, and drop their files and notes."""
    for process in left:
        processes.end_session(*process, signal.SIGKILL)
    shutil.rmtree(_directory(operation), ignore_errors=True)
    _save(operation, None)


def _ask_again(operation: Operation) -> None:
    if operation.progress is not None and operation.status in OPEN_OPERATIONS:
        logger.warning("%s %s is started again: its machine is away", operation.kind, operation.pk)
        _save(operation, {"tries": operation.progress.get("tries", 0)})


def _end_unnoted(operation: Operation) -> None:
    """End processes whose launcher was killed before it could note them."""
    for _ in range(OUTPUTS_MAX):
        process = processes.marked(_mark(operation))
        if process is None:
            return
        processes.end_session(process.pid, process.started_at, signal.SIGKILL)


def _save(operation: Operation, progress: dict[str, Any] | None) -> None:
    operation.progress = progress
    Operation.objects.filter(pk=operation.pk).update(progress=progress)


def _size(operation: Operation) -> int:
    files = _directory(operation).glob("*.out")
    return max((file.stat().st_size for file in files), default=0)


def _until(progress: dict[str, Any] | None) -> datetime:
    return datetime.fromisoformat((progress or {})["until"])


def _directory(operation: Operation) -> Path:
    return driver_files.root() / "answers" / str(operation.pk)


def _mark(operation: Operation) -> str:
    return f"operation/{operation.pk}"


def outputs_of(job: Job) -> dict[str, str]:
    """The directories that a job's file sinks commit to, by operator."""
    known = job.operators.exclude(files=None).order_by("position")
    return {uid: files or "" for uid, files in known.values_list("uid", "files")}
