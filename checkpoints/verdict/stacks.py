"""The text of a stack: the user's innermost frame, its error, and what it waits for. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from weir.own_frames import OWN_FRAME
from weir.protocol.messages import IT_KEPT_THE_LOCK, IT_WAITS, IT_WAS_FROZEN

# Python's own form of a frame, in a traceback and in a sampled stack alike.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
# Below these a frame is not the user's: the interpreter's library and installed packages.
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*)/|<frozen ")

_LOCATED = re.compile(r"\([^()\n]+:\d+\)")  # The line of the pipeline that made an operator.


# Frames of modules that talk to another system.
_SOCKETS = re.compile(
    r"/(socket|ssl|http/client|urllib/request|smtplib|ftplib|imaplib|multiprocessing/connection)"
    r"\.py$|/(urllib3|requests|httpx|httpcore|psycopg2?|redis|pymysql|pymongo|grpc|kafka|pika|boto3"
    r"|botocore|aiohttp|websockets?)/"
)
_SOCKET_CALL = re.compile(
    r"\.(recv|recv_into|recvfrom|send|sendall|sendto|accept|connect|create_connection|urlopen|execute"
    r"|fetch\w*)\("
)
_LOCKS = re.compile(
    r"/(threading|queue|multiprocessing/(synchronize|queues)|concurrent/futures/\w+)\.py$"
)
_LOCK_CALL = re.compile(r"\.(acquire|wait|join|result)\(")
_SLEEP_CALL = re.compile(r"\bsleep\(")
_SINKS = re.compile(r"[/\\]weir[/\\](?:operators[/\\]sinks|output)[/\\]")
_STORAGE = re.compile(r"[/\\]weir[/\\]storage[/\\]")


class Waiting(Enum):
    """The thing that a stack waits for, as far as its frames tell."""

    SOCKET = auto()
    LOCK = auto()
    SLEEP = auto()
    SINK = auto()  # Files of one of Weir's sinks.
    STORAGE = auto()  # Files of the checkpoint storage.
    NATIVE = auto()  # Something in a call into C: a file, a device, a library's lock.
    NOTHING = auto()  # It works.
    LOCKED = auto()  # It worked in C, and no other thread of its process could run.
    FROZEN = auto()  # The process stood still.


_NOTES = {IT_KEPT_THE_LOCK: Waiting.LOCKED, IT_WAS_FROZEN: Waiting.FROZEN}
_NONE = re.compile(r"(?!)")  # Matches nothing.
# By the files of frames below the user's code, and by the line of a thread that waits.
_KINDS = (
    (_SINKS, _NONE, Waiting.SINK),
    (_STORAGE, _NONE, Waiting.STORAGE),
    (_SOCKETS, _SOCKET_CALL, Waiting.SOCKET),
    (_LOCKS, _LOCK_CALL, Waiting.LOCK),
    (_NONE, _SLEEP_CALL, Waiting.SLEEP),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call."""

    function: str
    file: str  # The file's name, without its directories.
    line: int

    @property
    def text(self) -> str:
        """``"enrich (pipeline.py:41)"``."""
        return f"{self.function} ({self.file}:{self.line})"


def where(stack: str) -> Frame | None:
    """The innermost frame of the user's own code; else the innermost there is."""
    frames = list(_FRAME.finditer(stack))
    if not frames:
        return None
    own = [frame for frame in frames if not _is_foreign(frame["file"])]
    innermost = (own or frames)[-1]
    return Frame(
        innermost["function"], innermost["file"].rpartition("/")[2], int(innermost["line"])
    )


def waits_for(stack: str) -> Waiting:
    """The thing that the innermost frames of a stack wait for.

    A function in C has no frame: its caller's line tells what it is, or else the worker's note that
    the thread waits.
    """
    files = [frame["file"] for frame in _FRAME.finditer(stack)]
    below = files[_last_own(files) + 1 :]
    lines = [line for line in stack.splitlines() if line.strip(" ^~")]
    note = lines[-1].strip() if lines else ""
    if note in _NOTES:
        return _NOTES[note]
    waits = note == IT_WAITS
    last = lines[-2] if waits and len(lines) > 1 else ""
    for modules, calls, waiting in _KINDS:
        if any(modules.search(file) for file in below) or calls.search(last):
            return waiting
    return Waiting.NATIVE if waits else Waiting.NOTHING


def _last_own(files: Sequence[str]) -> int:
    """The index of the innermost frame of the user's code; -1: there is none."""
    own = [index for index, file in enumerate(files) if not _is_foreign(file)]
    return own[-1] if own else -1


def _is_foreign(file: str) -> bool:
    return bool(_LIBRARY.search(file) or OWN_FRAME.search(file))


def error(text: str) -> str:
    """The error at the end of a traceback, ``"OSError: [Errno 28] No space left on device"``.

    Text that is no traceback is its own first line, as is one that begins with the operator and its
    line, ``'Map' (pipeline.py:12) failed on the record 7: …``.
    """
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    is_told = _LOCATED.search(lines[0]) and not _is_heading(lines[0])
    if is_told or not any(line.startswith("Traceback ") for line in lines):
        return lines[0].strip()
    # Its last line that is not indented begins the error; notes and further lines may follow.
    starts = [i for i, line in enumerate(lines) if line[:1].strip() and not _is_heading(line)]
    return lines[starts[-1]].strip() if starts else lines[-1].strip()


def _is_heading(line: str) -> bool:
    return line.startswith(("Traceback ", "During handling", "The above exception"))
