"""States of all kinds for tests of keyed state."""

from collections.abc import Iterable
from typing import Any

from tests.unit.operators.operator_harness import InlineWriter
from weir.ids import StateHandle
from weir.state.descriptors import StateDescriptor
from weir.state.store import OperatorStateStore


class Collected:
    """An aggregate whose accumulator is changed in place, as those of users are."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a + acc_b


def state_of(store: OperatorStateStore, descriptor: StateDescriptor) -> Any:
    """The state that a descriptor declares."""
    keyed = store.keyed
    getters: dict[str, Any] = {
        "value": keyed.get_state,
        "list": keyed.get_list_state,
        "map": keyed.get_map_state,
        "reducing": keyed.get_reducing_state,
        "aggregating": keyed.get_aggregating_state,
    }
    return getters[descriptor.kind](descriptor)


def written(parts: Iterable[Any]) -> list[StateHandle]:
    """The parts of a snapshot, stored inline and released."""
    parts = list(parts)
    handles = [handle for part in parts for handle in part.write(InlineWriter())]
    for part in parts:
        part.release()
    return handles
