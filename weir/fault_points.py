"""Named points in production code at which a test can make a process die, throw, hang or stop.

A point is a call of ``reach``; it does nothing, at the cost of checking one boolean, unless a fault
for it was armed. A process gets its faults in the environment variable ``WEIR_FAULTS``, which is
read once, when this module is first imported: a JSON list of objects with the fields of ``Fault``.
(Nothing else in the runtime reads the environment; this module may, because faults must not pass
through the settings of the job whose handling they disturb.)

A fault that fires first writes its marker, ``once_file``. The file is created exclusively, so the
fault fires once over all processes and restarts, and a test reads from the marker where and when it
fired. Only then does the fault act.

Standard library only: every floor may import this module.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

VARIABLE = "WEIR_FAULTS"
HANG_SECONDS = 3_600

Action = Literal["kill", "raise", "hang", "stop"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its point, its action, and the hit at which it fires.

    kill: SIGKILL to this process. stop: SIGSTOP to it. hang: the calling thread stays in one C call
    for an hour. raise: ``RuntimeError`` in the caller.
    """

    point: str
    action: Action
    match: Mapping[str, Any] = field(default_factory=dict)  # Arguments that ``reach`` must have.
    after: int = 1  # Fires at this matching hit of the process, counted from 1.
    once_file: str | None = None  # The marker; None: once in every process that reaches it.

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise ValueError(
                f"fault at {self.point}: action {self.action!r} is none of "
                f"{', '.join(get_args(Action))}"
            )
        if self.after < 1:
            raise ValueError(f"fault at {self.point}: after is {self.after}; hits count from 1")


def to_environment(faults: Iterable[Fault]) -> str:
    """The value of ``WEIR_FAULTS`` that arms ``faults`` in a process started with it."""
    return json.dumps([asdict(fault) for fault in faults])


def from_environment(value: str) -> list[Fault]:
    """The faults in a value of ``WEIR_FAULTS``.

    Raises:
        ValueError: The value is no JSON list of faults, or one has an unknown field.
    """
    known = {f.name for f in fields(Fault)}
    specs = json.loads(value)
    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise ValueError(f"{VARIABLE} must be a JSON list of objects, not {value!r}")
    for spec in specs:
        if unknown := sorted(set(spec) - known):
            raise ValueError(f"{VARIABLE} has unknown fields: {', '.join(unknown)}")
        if missing := sorted({"point", "action"} - set(spec)):
            raise ValueError(f"{VARIABLE} lacks the fields: {', '.join(missing)}")
    return [Fault(**spec) for spec in specs]


def arm(faults: Iterable[Fault]) -> None:
    """Arm exactly these faults in this process, their hits counted from now."""
    global _armed
    _faults[:] = [[fault, 0] for fault in faults]
    _armed = bool(_faults) or _listener is not None


@contextmanager
def listening(listener: Callable[[str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Call ``listener`` at every point that is reached within the context; it may raise."""
    global _armed, _listener
    before = _listener
    _listener, _armed = listener, True
    try:
        yield
    finally:
        _listener = before
        _armed = bool(_faults) or before is not None


def reach(point: str, **where: Any) -> None:
    """Mark that the process reached ``point``; ``where`` holds arguments for ``Fault.match``."""
    if _armed:
        _reach_armed(point, where)


def _reach_armed(point: str, where: Mapping[str, Any]) -> None:
    if _listener is not None:
        _listener(point, where)
    for entry in _faults:
        fault, hits = entry
        if fault.point != point or not _matches(fault.match, where):
            continue
        entry[1] = hits + 1
        if entry[1] == fault.after and _mark(fault, where):
            _act(fault, where)


def _matches(match: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether all arguments match, compared as text: ids are numbers, and JSON has few types."""
    return all(key in where and str(where[key]) == str(value) for key, value in match.items())


def _mark(fault: Fault, where: Mapping[str, Any]) -> bool:
    """Whether the fault may fire: writes its marker, which only one process can."""
    if fault.once_file is None:
        return True
    try:
        marker = os.open(fault.once_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    content = {
        "point": fault.point,
        "action": fault.action,
        "where": {key: str(value) for key, value in where.items()},
        "pid": os.getpid(),
        "monotonic_ns": time.monotonic_ns(),
        "wall_ms": time.time_ns() // 1_000_000,
    }
    with open(marker, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    return True


def _act(fault: Fault, where: Mapping[str, Any]) -> None:
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(HANG_SECONDS)
        case "raise":
            raise RuntimeError(f"fault at {fault.point} {dict(where)}")


_faults: list[list[Any]] = []  # [Fault, matching hits so far] each.
_listener: Callable[[str, Mapping[str, Any]], None] | None = None
_armed = False
if VARIABLE in os.environ:
    arm(from_environment(os.environ[VARIABLE]))
