"""Tracebacks with the user's frames only.

A frame of the standard library or of another package belongs to its caller: kept below the
user's code, left out below Weir's (``weir.own_frames``).
"""

import re
import traceback
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

from weir.own_frames import OWN_FRAME

_EXAMPLES = re.compile(r"[/\\]weir[/\\]examples[/\\]")
_LIBRARY = re.compile(r"^<|[/\\]lib[/\\]python3|[/\\](?:site|dist)-packages[/\\]|\.p(?:yx|xi)$")
_FRAME = re.compile(r'  File "(?P<file>.*)", line \d+, in ')
_HEADER = "Traceback (most recent call last):"
_IN_SUBTASK = "(in the subtask "
_ERROR_NAME = re.compile(r"[A-Za-z_][\w.]*")
_SUBTASK_FAILED = re.compile(r"(?P<subtask>\S+-\d+) failed\n(?P<headline>(?!Traceback)[^\n]+)\n?")

STACK_FRAMES_MAX = 40

T = TypeVar("T")


def users_traceback(error: BaseException) -> str:
    """An exception and its causes as Python prints them, with the user's frames only."""
    whole = traceback.TracebackException.from_exception(error)
    _strip(whole, set())
    return _without_empty_headers("".join(whole.format()).splitlines(keepends=True))


def users_frames(error: BaseException) -> str:
    """The frames of the user's code in an exception's traceback, without the exception."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = _users((frame.filename, frame) for frame in frames)
    return "".join(traceback.StackSummary.from_list(list(kept)).format())


def users_stack(stack: traceback.StackSummary) -> str:
    """A stack from the user's first frame on, innermost last; all of it where none is the user's.

    Shape: at most ``STACK_FRAMES_MAX`` frames; of more, as many of either end.
    """
    frames = list(_users((frame.filename, frame) for frame in stack)) or list(stack)
    half = STACK_FRAMES_MAX // 2
    left_out = len(frames) - 2 * half
    if left_out <= 0:
        return "".join(traceback.format_list(frames))
    outer, inner = traceback.format_list(frames[:half]), traceback.format_list(frames[-half:])
    return "".join([*outer, f"  ... {left_out} frames are left out ...\n", *inner])


@lru_cache(maxsize=1_024)
def is_users_file(file: str) -> bool:
    """Whether a frame of this file is the user's: not Weir's, a library's or the interpreter's."""
    if _EXAMPLES.search(file):
        return True
    return not OWN_FRAME.search(file) and not _LIBRARY.search(file)


def without_own_frames(text: str) -> str:
    """A text with its tracebacks reduced to the user's frames."""
    blocks: list[tuple[str | None, list[str]]] = []  # Runs of lines; of a frame, with its file.
    for line in text.splitlines(keepends=True):
        frame = _FRAME.match(line)
        if frame is not None:
            blocks.append((frame["file"], [line]))
        elif blocks and (blocks[-1][0] is None or line.startswith("    ")):
            blocks[-1][1].append(line)
        else:
            blocks.append((None, [line]))
    kept = _users((file, lines) for file, lines in blocks)
    return _without_empty_headers(line for lines in kept for line in lines)


def operator_first(cause: str) -> str:
    """The cause of a job's failure with the operator's line first, the subtask's name behind it.

    A cause that is not a subtask's, or that begins with its traceback, stays as it is.
    """
    failed = _SUBTASK_FAILED.match(cause)
    if failed is None:
        return cause
    said, header, stack = cause[failed.start("headline") :].partition(_HEADER)
    return f"{said.rstrip()}\n{_IN_SUBTASK}{failed['subtask']})\n{header}{stack}"


def headline_of(cause: str) -> str | None:
    """The line of a cause that names the operator; None: it has none."""
    failed = _SUBTASK_FAILED.match(cause.lstrip())
    return None if failed is None else failed["headline"]


def _users(frames: Iterable[tuple[str | None, T]]) -> Iterator[T]:
    """The items of the user's files, and those of no file at all."""
    is_users = False
    for file, what in frames:
        if file is None:
            yield what
            is_users = False  # The next traceback begins in Weir again.
            continue
        if _EXAMPLES.search(file):
            is_users = True
        elif OWN_FRAME.search(file):
            is_users = False
        elif not _LIBRARY.search(file):
            is_users = True
        if is_users:
            yield what


def _strip(exception: traceback.TracebackException | None, seen: set[int]) -> None:
    if exception is None or id(exception) in seen:
        return
    seen.add(id(exception))
    exception.stack[:] = _users((frame.filename, frame) for frame in exception.stack)
    _strip(exception.__cause__, seen)
    _strip(exception.__context__, seen)
    for inner in exception.exceptions or ():
        _strip(inner, seen)


def _without_empty_headers(lines: Iterable[str]) -> str:
    """The lines without traceback headers that no frame follows, and errors without a message."""
    kept: list[str] = []
    for line in lines:
        if kept and kept[-1].strip() == _HEADER and not line.startswith("  File"):
            kept.pop()
            if _ERROR_NAME.fullmatch(line.strip()) and kept and kept[-1].startswith(_IN_SUBTASK):
                continue  # Its message is the headline.
        kept.append(line)
    return "".join(kept)
