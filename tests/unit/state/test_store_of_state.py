"""All state of one operator subtask: made on demand, frozen together, restored from handles."""

import pyarrow as pa
import pytest

from tests.unit.operators.operator_harness import InlineWriter
from weir.common.typeinfo import Types
from weir.errors import CorruptStateError, UserError
from weir.graph.key_groups import key_group_range
from weir.ids import CheckpointId, StateHandle
from weir.protocol.deployment import RestoredHandle
from weir.state.descriptors import ValueStateDescriptor
from weir.state.store import OperatorStateStore

COUNT = ValueStateDescriptor("count", Types.LONG())


def store(
    *handles: StateHandle, keyed: bool = True, share: tuple[int, int] | None = None
) -> OperatorStateStore:
    return OperatorStateStore(
        key_group_range(128, 1, 0),
        128,
        keyed=keyed,
        restored=[RestoredHandle(handle, handle.key_groups, share) for handle in handles],
        read=lambda handle: handle.inline or b"",
    )


def frozen(state: OperatorStateStore) -> list[StateHandle]:
    parts = state.freeze(CheckpointId(1))
    handles = [handle for part in parts for handle in part.write(InlineWriter())]  # type: ignore[arg-type]
    for part in parts:
        part.release()
    return handles


def test_everything_comes_back() -> None:
    before = store()
    before.keyed.set_current_key("a")
    before.keyed.get_state(COUNT).update(3)
    table = before.table("sums", pa.string(), {"sum": "i8"})
    table.column("sum").scatter(table.slots_of(pa.array(["a"])), [5])
    before.list_state("items").update([1, 2])
    before.broadcast_state("rules").put("limit", 9)
    handles = frozen(before)

    after = store(*handles)
    after.keyed.set_current_key("a")
    assert after.keyed.get_state(COUNT).value() == 3
    again = after.table("sums", pa.string(), {"sum": "i8"})
    assert again.column("sum").gather(again.slots_of(pa.array(["a"]))).tolist() == [5]
    assert after.list_state("items").get() == [1, 2]
    assert after.broadcast_state("rules").get("limit") == 9
    assert after.restored
    assert after.restored_bytes == sum(handle.size for handle in handles)


def test_nothing_restored_is_told_from_restored_and_empty() -> None:
    assert not store().restored
    before = store()
    before.list_state("items")
    assert store(*frozen(before)).restored


def test_what_changes_after_the_freeze_is_not_in_the_snapshot() -> None:
    state = store()
    items = state.list_state("items")
    items.add(1)
    parts = state.freeze(CheckpointId(1))
    items.add(2)
    handles = [handle for part in parts for handle in part.write(InlineWriter())]  # type: ignore[arg-type]
    assert store(*handles).list_state("items").get() == [1]


def test_state_not_asked_for_after_a_restore_stays_in_the_next_snapshot() -> None:
    """An operator opens its state when the first record comes; a snapshot may come before it."""
    before = store()
    before.keyed.set_current_key("a")
    before.keyed.get_state(COUNT).update(3)
    before.list_state("items").add(1)
    twice = store(*frozen(store(*frozen(before))))
    twice.keyed.set_current_key("a")
    assert twice.keyed.get_state(COUNT).value() == 3
    assert twice.list_state("items").get() == [1]


def test_split_items_are_dealt_out_by_share() -> None:
    before = store()
    before.list_state("items").update([0, 1, 2, 3, 4])
    (handle,) = [h for h in frozen(before) if h.name == "items"]
    assert store(handle, share=(1, 2)).list_state("items").get() == [1, 3]


def test_a_dropped_table_is_in_no_further_snapshot() -> None:
    state = store()
    state.table("window-1", pa.string(), {"sum": "i8"})
    named = {handle.name for handle in frozen(state)}
    state.drop_table("window-1")
    assert named - {handle.name for handle in frozen(state)} <= {"window-1"}
    assert "window-1" not in {handle.name for handle in frozen(state)}


def test_without_a_key_there_is_no_keyed_state() -> None:
    state = store(keyed=False)
    for ask in (lambda: state.keyed, lambda: state.timers, lambda: state.table("t", None, {})):
        with pytest.raises(UserError, match="call key_by"):
            ask()
    assert frozen(state) == []


def test_a_kind_of_state_that_does_not_exist_is_damage() -> None:
    strange = StateHandle("operator", "n", 2, "", inline=b"[]", mode="shuffled")
    with pytest.raises(CorruptStateError, match="mode shuffled"):
        store(strange)
