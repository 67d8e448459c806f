"""A plain reading of the user's API, which says what a program means.

Everything is evaluated in one list per stream, record by record. A value is copied whenever it
changes hands: from an operator to each of its consumers, into state and out of it. A declared type
is applied where it is declared. There are no slices, no subtasks, no channels and no snapshots; the
only things taken over from Weir are values that mean nothing by themselves (rows, tags, window
assigners, watermark strategies).

A stream is a list of ``Record`` and ``Mark``. A mark is a watermark; there are marks only where the
watermark strategy has a resolution, so that it is known where they come.
"""

from tests.programs.oracle.calls import Refused
from tests.programs.oracle.environment import evaluate

__all__ = ["evaluate", "Refused"]
