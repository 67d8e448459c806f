"""One line from the text of a stack: the user's innermost frame, or the error. Pure."""

import re
from dataclasses import dataclass

from weir.own_frames import OWN_FRAME

# Python's own form of a frame, in a traceback and in a sampled stack alike.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
# Below these a frame is not the user's: the interpreter's library and installed packages.
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*)/|<frozen ")

_LOCATED = re.compile(r"\([^()\n]+:\d+\)")  # The line of the pipeline that made an operator.


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
