"""The states of a worker process that take memory, for the text of its end."""

from collections.abc import Iterable
from dataclasses import dataclass

from weir.common.sizes import size
from weir.ids import SubtaskId
from weir.state.backends.base import Held
from weir.state.store import OperatorStateStore


@dataclass(frozen=True, slots=True)
class Holder:
    """One state of an operator subtask."""

    subtask: SubtaskId  # Of the chain.
    operator: SubtaskId
    state: str
    held: Held

    def __str__(self) -> str:
        entries = "1 entry" if self.held.entries == 1 else f"{self.held.entries:,} entries"
        return f"{self.state!r} of {self.operator}, {entries}, about {size(self.held.bytes)}"


def holders_of(
    stores: Iterable[tuple[SubtaskId, SubtaskId, OperatorStateStore]],
) -> list[Holder]:
    """The states of these chains' operator subtasks, the largest first."""
    known = [
        Holder(chain, operator, name, held)
        for chain, operator, store in stores
        for name, held in store.held().items()
        if held.entries
    ]
    return sorted(known, key=lambda holder: holder.held.bytes, reverse=True)
