"""Bad records: those on which a function raises, under an operator's ``on_error``."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.programs.oracle.calls import Refused
from tests.programs.oracle.events import Event, Record
from weir.common import Row
from weir.datastream import OutputTag


class Tolerance:
    """The policy of one operator, which is set once its stream is there, and its bad records."""

    def __init__(self, sides: dict[str, list[Event]]) -> None:
        self._sides = sides
        self._skips = False
        self._tag: OutputTag | None = None

    def set(self, action: str | None, side_output: OutputTag | None) -> None:
        """Take over the arguments of ``on_error``."""
        self._skips = action == "skip" or side_output is not None
        self._tag = side_output

    def results(
        self,
        event: Record,
        made: Callable[[], Iterable[Any]],
        undo: Callable[[], None] = lambda: None,
    ) -> Iterable[Any]:
        """The records that a function makes of one; none if it raises and that is tolerated."""
        if not self._skips:
            return made()
        try:
            return list(made())
        except Refused as refused:
            undo()
            if self._tag is not None:
                cause = refused.__cause__
                bad = Row(error=type(cause).__name__, message=str(cause), event_time=event.at)
                self._sides.setdefault(self._tag.tag_id, []).append(Record(bad, event.at))
            return []
