"""The entries of states in memory, and their sizes as a sample tells them."""

import pytest

from weir.common.sizes import object_bytes
from weir.common.typeinfo import Types
from weir.ids import KeyGroupRange
from weir.state.backends.base import Held
from weir.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from weir.state.store import OperatorStateStore


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (b"x" * 100_000, 100_000, 100_100),
        ([b"x" * 1_000] * 500, 500_000, 530_000),
        ({"a": [b"y" * 2_000]}, 2_000, 3_000),
        ((1, 2.0, None), 60, 250),
        (list(range(1_000_000)), 30_000_000, 45_000_000),
    ],
)
def test_an_object_is_sized_with_what_is_in_it(value: object, least: int, most: int) -> None:
    assert least <= object_bytes(value) <= most


def test_an_object_that_holds_itself_ends() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert object_bytes(endless) < 10_000


def test_each_state_of_a_store_is_counted() -> None:
    store = OperatorStateStore(
        KeyGroupRange(0, 127), 128, keyed=True, read=lambda handle: b"", allow_pickled_state=True
    )
    blobs = store.keyed.get_state(ValueStateDescriptor("blob", Types.PICKLED_BYTE_ARRAY()))
    texts = store.keyed.get_list_state(ListStateDescriptor("texts", Types.STRING()))
    for key in range(50):
        store.keyed.set_current_key(key)
        blobs.update(b"x" * 10_000)
        texts.add("t")
        store.timers.event_time.register(1_000 + key, key)
    store.list_state("offsets").add_all([1, 2, 3])
    store.broadcast_state("rules").put("a", 1)
    store.table("sums", None, {"n": "int64"}).slots_of([1, 2])
    held = store.held()
    assert {name: its.entries for name, its in held.items()} == {
        "blob": 50, "texts": 50, "timers": 50, "offsets": 3, "rules": 1, "sums": 2,
    }  # fmt: skip
    assert 500_000 <= held["blob"].bytes <= 520_000
    assert all(0 < its.bytes < 60_000 for name, its in held.items() if name != "blob")


def test_nothing_is_held_by_no_dictionary() -> None:
    assert Held.of_tables([]) == Held.of_tables([{}]) == Held(0, 0)
