"""The times at which a subtask had bad records, for rules that count them within a window.

A mark is a time in milliseconds and the number of bad records since the mark before; those of one
minute are one mark, at the time of its last report. Marks outlive attempts, and the records that an
attempt processes again count again. Pure.
"""

from collections.abc import Sequence
from typing import TypeAlias

KEPT_MS = 3_600_000
_MINUTE_MS = 60_000

Mark: TypeAlias = list[int]


def marked(marks: Sequence[Mark], now_ms: int, before: int, total: int) -> list[Mark]:
    """The marks after a report of ``total`` bad records since the attempt began.

    ``before`` is the total of the report before; a smaller total is that of another attempt.
    """
    new = total - before if total >= before else total
    kept = [mark for mark in marks if now_ms - KEPT_MS < mark[0]]
    if new and kept and kept[-1][0] // _MINUTE_MS == now_ms // _MINUTE_MS:
        new += kept.pop()[1]
    return [*kept, [now_ms, new]] if new else kept
