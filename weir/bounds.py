"""Bounds on integers, floats and texts, as annotations of the fields that hold them.

A field says ``index: Index`` and is an ``int`` to the type checker and to everything that runs.
The codec of messages between hosts (``weir.wire``) reads the bounds and refuses a value beyond
them, with its path. They are wide enough for every job that can run and narrow enough for each
column, each point in time and each loop that the value reaches.

Units are in the names: ``*Ms`` milliseconds, ``Count`` records or bytes.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

PARALLELISM_MAX = 32_768  # Flink's: the number of key groups.
NUMBER_MAX = 2**31 - 1  # As wide as an integer column.
COUNT_MAX = 2**53  # Nine petabytes; a float holds each of them.
POINT_MS_MAX = 32_503_680_000_000  # The year 3000.
DELAY_MS_MAX = 31_536_000_000_000  # A thousand years; two after any point end before year 9999.
DUE_MS_MAX = POINT_MS_MAX + 2 * DELAY_MS_MAX
TEXT_LENGTH_MAX = 64 << 10  # Characters of a traceback, a remark, a cause.
WORD_LENGTH_MAX = 4_096  # Characters of a name or a path.
NAME_LENGTH_MAX = 300  # Characters of an operator's uid, as wide as its columns.


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers from ``least`` to ``most``, both included."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Length:
    """Texts or tuples of at most ``most`` characters or entries.

    ``is_prose``: a text for people, whose end may be cut off instead.
    """

    most: int
    is_prose: bool = False


Index: TypeAlias = Annotated[int, Between(0, PARALLELISM_MAX)]  # Of a subtask, slot or channel.
Parallelism: TypeAlias = Annotated[int, Between(1, PARALLELISM_MAX)]
Number: TypeAlias = Annotated[int, Between(0, NUMBER_MAX)]  # An attempt, a pid, a port.
Count: TypeAlias = Annotated[int, Between(0, COUNT_MAX)]
PointMs: TypeAlias = Annotated[int, Between(0, POINT_MS_MAX)]  # Wall clock.
DueMs: TypeAlias = Annotated[int, Between(0, DUE_MS_MAX)]  # A deadline.
DelayMs: TypeAlias = Annotated[int, Between(0, DELAY_MS_MAX)]
EventTimeMs: TypeAlias = Annotated[int, Between(-(2**63), 2**63 - 1)]
# Clocks of two machines differ, so a measured duration may come out negative.
MeasuredMs: TypeAlias = Annotated[float, Between(-DELAY_MS_MAX, DELAY_MS_MAX)]
Factor: TypeAlias = Annotated[float, Between(0, 1_000_000)]
Word: TypeAlias = Annotated[str, Length(WORD_LENGTH_MAX)]
Prose: TypeAlias = Annotated[str, Length(TEXT_LENGTH_MAX, is_prose=True)]
