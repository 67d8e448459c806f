"""The position of a subtask's input: where to look for the record on which a function raised.

Of a source's own chain it is a stretch of a split, by the source's own positions, which a restored
attempt reads again. Behind an exchange records have no place of their own: they are counted as they
come, from the begin of the attempt on. It is as exact as a slice; the record itself is named beside
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weir.operators.user_code import short_repr


@dataclass(slots=True)
class InputPosition:
    """The slice of input that a subtask took last; all operators of a chain share one."""

    split: Mapping[str, Any] | None = None  # None: the input comes over channels.
    first: Any = None  # Of a split: a position, None at its start. Of channels: a count of records.
    behind: Any = None  # None: the slice is being read, or there was none yet.

    def __str__(self) -> str:
        if self.split is None:
            if self.behind is None:
                return "before the first input record"
            return f"in the input records {self.first + 1:,} to {self.behind:,} of the attempt"
        first = "the start" if self.first is None else f"position {short_repr(self.first)}"
        to = "on" if self.behind is None else f"up to {short_repr(self.behind)}"
        return f"from {first} {to} in the split {short_repr(self.split)}"
