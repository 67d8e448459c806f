"""A checkpoint laid onto the subtasks of a new execution."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import handle, subtask
from weir.errors import ProtocolError, RestoreError
from weir.graph.exchanges import OVERTAKABLE, Exchange, old_receivers
from weir.graph.key_groups import key_group_range
from weir.graph.logical import Partitioning
from weir.ids import KeyGroupRange, OperatorId, StateHandle, SubtaskId
from weir.protocol.deployment import OperatorRestore, RestoredHandle
from weir.protocol.restore import OperatorSnapshot, RestorePlan, RestoreTarget, plan_restore

COUNT = OperatorId("count")


def keyed(first: int, last: int, name: str = "counts") -> StateHandle:
    return handle(name, key_groups=KeyGroupRange(first, last))


def listed(mode: str, index: int, name: str = "positions") -> StateHandle:
    """Operator state that names the old subtask it is from."""
    return handle(name, kind="operator", mode=mode, inline=bytes([index]))


def snapshot(
    *handles: tuple[StateHandle, ...], max_parallelism: int = 128, operator: OperatorId = COUNT
) -> OperatorSnapshot:
    """The snapshot of an operator, from the handles of each old subtask, in order."""
    return OperatorSnapshot(operator, len(handles), max_parallelism, dict(enumerate(handles)))


def target(parallelism: int = 2, **kwargs: Any) -> RestoreTarget:
    return RestoreTarget(kwargs.pop("operator", COUNT), parallelism, **kwargs)


def restored(plan: RestorePlan) -> dict[str, list[RestoredHandle]]:
    return {str(r.subtask): list(r.handles) for r in plan.restores}


def test_unchanged_parallelism_gives_each_subtask_what_it_saved() -> None:
    low, high = keyed(0, 63), keyed(64, 127)
    one, two = listed("split", 0), listed("split", 1)
    plan = plan_restore([snapshot((low, one), (high, two))], [target(2)])
    assert plan.restores == (
        OperatorRestore(
            subtask("count-0"), (RestoredHandle(low, KeyGroupRange(0, 63)), RestoredHandle(one))
        ),
        OperatorRestore(
            subtask("count-1"), (RestoredHandle(high, KeyGroupRange(64, 127)), RestoredHandle(two))
        ),
    )


def test_keyed_state_moves_by_the_key_groups_that_overlap() -> None:
    low, high = keyed(0, 63), keyed(64, 127)
    plan = plan_restore([snapshot((low,), (high,))], [target(3)])
    assert restored(plan) == {
        "count-0": [RestoredHandle(low, KeyGroupRange(0, 42))],
        "count-1": [
            RestoredHandle(low, KeyGroupRange(43, 63)),
            RestoredHandle(high, KeyGroupRange(64, 85)),
        ],
        "count-2": [RestoredHandle(high, KeyGroupRange(86, 127))],
    }


@given(st.integers(1, 12), st.integers(1, 12), st.integers(12, 200))
def test_every_key_group_is_read_by_exactly_the_subtask_that_owns_it(
    old: int, new: int, max_parallelism: int
) -> None:
    held = [(handle(key_groups=key_group_range(max_parallelism, old, i)),) for i in range(old)]
    plan = plan_restore([snapshot(*held, max_parallelism=max_parallelism)], [target(new)])
    read: Counter[int] = Counter()
    for restore in plan.restores:
        owned = key_group_range(max_parallelism, new, restore.subtask.index)
        for piece in restore.handles:
            assert piece.key_groups is not None
            assert piece.handle.key_groups is not None
            for group in range(piece.key_groups.first, piece.key_groups.last + 1):
                assert group in owned
                assert group in piece.handle.key_groups
                read[group] += 1
    assert read == Counter(range(max_parallelism))


def items_read(plan: RestorePlan, sizes: list[int]) -> dict[SubtaskId, list[tuple[int, int]]]:
    """Per new subtask the (old subtask, item) pairs of its split lists."""
    return {
        restore.subtask: [
            (old, item)
            for piece in restore.handles
            for old in [(piece.handle.inline or b"")[0]]
            for item in range(sizes[old])
            if piece.share is None or item % piece.share[1] == piece.share[0]
        ]
        for restore in plan.restores
    }


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 8))
def test_every_item_of_split_state_is_read_once(sizes: list[int], new: int) -> None:
    held = [(listed("split", i),) for i in range(len(sizes))]
    plan = plan_restore([snapshot(*held)], [target(new)])
    read = Counter(pair for pairs in items_read(plan, sizes).values() for pair in pairs)
    assert read == Counter((old, i) for old, size in enumerate(sizes) for i in range(size))


def test_lists_of_one_item_are_spread_over_all_subtasks() -> None:
    plan = plan_restore([snapshot(*[(listed("split", i),) for i in range(4)])], [target(2)])
    assert items_read(plan, [1] * 4) == {
        subtask("count-0"): [(0, 0), (2, 0)],
        subtask("count-1"): [(1, 0), (3, 0)],
    }


@pytest.mark.parametrize("new", [1, 2, 3])
def test_union_state_goes_whole_to_every_subtask(new: int) -> None:
    one, two = listed("union", 0), listed("union", 1)
    plan = plan_restore([snapshot((one,), (two,))], [target(new)])
    whole = [RestoredHandle(one), RestoredHandle(two)]
    assert restored(plan) == {f"count-{i}": whole for i in range(new)}


def test_broadcast_state_reaches_every_subtask_once() -> None:
    one, two = listed("broadcast", 0), listed("broadcast", 1)
    plan = plan_restore([snapshot((one,), (two,))], [target(3)])
    assert restored(plan) == {
        "count-0": [RestoredHandle(one)],
        "count-1": [RestoredHandle(two)],
        "count-2": [RestoredHandle(one)],
    }


def test_a_new_operator_starts_empty_and_the_restored_max_parallelism_is_adopted() -> None:
    plan = plan_restore(
        [snapshot((keyed(0, 9),), max_parallelism=10)],
        [target(1), target(1, operator=OperatorId("new"))],
    )
    assert plan.max_parallelism == {"count": 10, "new": 128}
    assert [str(r.subtask) for r in plan.restores] == ["count-0"]


def test_state_without_an_operator_is_refused_by_name_unless_allowed() -> None:
    held = [snapshot((keyed(0, 127),), operator=OperatorId("old"))]
    with pytest.raises(RestoreError, match=r"state of old.*it has count.*allow_non_restored_state"):
        plan_restore(held, [target()])
    plan = plan_restore(held, [target()], allow_non_restored_state=True)
    assert (plan.restores, plan.skipped) == ((), ("old",))


def test_an_operator_that_saved_nothing_may_go() -> None:
    plan = plan_restore([snapshot((), (), operator=OperatorId("stateless"))], [target()])
    assert (plan.restores, plan.skipped) == ((), ())


def test_an_operator_that_saved_nothing_but_its_watermark_may_go() -> None:
    """Functions without a key keep it, and could be left out before they did."""
    held = snapshot((listed("union", 0, "watermark"),), operator=OperatorId("process"))
    plan = plan_restore([held], [target()])
    assert (plan.restores, plan.skipped) == ((), ("process",))
    for more in (keyed(0, 127), listed("union", 0), keyed(0, 127, "watermark")):
        held = snapshot((listed("union", 0, "watermark"),), (more,), operator=OperatorId("process"))
        with pytest.raises(RestoreError, match="state of process"):
            plan_restore([held], [target()])


def test_an_operator_that_saved_nothing_but_its_number_of_bad_records_may_go() -> None:
    held = snapshot((listed("split", 0, "bad-records"),), operator=OperatorId("map"))
    assert plan_restore([held], [target()]).skipped == ("map",)


def test_a_parallelism_above_the_restored_max_parallelism_is_refused() -> None:
    held = [snapshot((keyed(0, 3),), max_parallelism=4)]
    with pytest.raises(RestoreError, match="lower the parallelism to 4 or less"):
        plan_restore(held, [target(5)])


def test_another_max_parallelism_that_was_set_is_refused() -> None:
    held = [snapshot((keyed(0, 127),))]
    with pytest.raises(RestoreError, match="set it to 128, or leave it out"):
        plan_restore(held, [target(1, max_parallelism=256)])
    assert plan_restore(held, [target(1, max_parallelism=128)]).restores


SOURCE = OperatorId("source")


def exchange(partitioning: Partitioning = Partitioning.HASH) -> Exchange:
    return Exchange("source>count.0/0", SOURCE, COUNT, partitioning)


def under_way(
    direction: str, number: int, partitioning: Partitioning = Partitioning.HASH
) -> StateHandle:
    """Records to ``count``: a part of its input, or what waited for that receiver's credit."""
    name = f"{direction}/source>count.0/0/{number}"
    return handle(name, kind="channel", mode=partitioning.value)


def test_records_under_way_are_restored_to_the_subtask_that_they_were_under_way_to() -> None:
    first, second, other = under_way("in", 0), under_way("in", 1), under_way("out", 1)
    held = [
        snapshot((under_way("out", 0),), (other,), operator=SOURCE),
        snapshot((first, second), ()),
    ]
    plan = plan_restore(held, [target(2), target(2, operator=SOURCE)], [exchange()])
    assert restored(plan) == {
        "count-0": [RestoredHandle(h) for h in (first, second, under_way("out", 0))],
        "count-1": [RestoredHandle(other)],
    }


def test_all_that_had_reached_a_receiver_comes_before_what_waited_at_a_sender() -> None:
    """Two old receivers become one: each channel's own order is kept."""
    held = [
        snapshot((under_way("out", 0), under_way("out", 1)), operator=SOURCE),
        snapshot((under_way("in", 0),), (under_way("in", 0),)),
    ]
    plan = plan_restore(held, [target(1), target(1, operator=SOURCE)], [exchange()])
    names = [piece.handle.name for piece in restored(plan)["count-0"]]
    assert names == [
        "in/source>count.0/0/0", "in/source>count.0/0/0",
        "out/source>count.0/0/0", "out/source>count.0/0/1",
    ]  # fmt: skip


@pytest.mark.parametrize("new", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("old", [1, 2, 3, 4])
@pytest.mark.parametrize("partitioning", sorted(OVERTAKABLE))
def test_each_record_under_way_has_one_new_receiver(
    partitioning: Partitioning, old: int, new: int
) -> None:
    """A keyed one may be read by several subtasks, of which only its owner keeps it."""
    held = [
        snapshot(*[(under_way("in", 0, partitioning),) for _ in range(old)], max_parallelism=10),
    ]
    plan = plan_restore(held, [target(new)], [exchange(partitioning)])
    readers: dict[int, list[tuple[int, KeyGroupRange | None]]] = {i: [] for i in range(old)}
    for index in range(new):
        for i in old_receivers(partitioning, index, new, old, 10):
            readers[i].append((index, None))
    counted = Counter(
        str(r.subtask) for r in plan.restores for piece in r.handles if piece.handle.kind
    )
    assert sum(counted.values()) == sum(map(len, readers.values()))
    for i, read_by in readers.items():
        if partitioning is Partitioning.HASH and old != new:
            owned = key_group_range(10, old, i)
            for group in range(owned.first, owned.last + 1):
                owner = group * new // 10
                assert owner in [index for index, _ in read_by]
            own = [h.key_groups for r in plan.restores for h in r.handles]
            assert own == [key_group_range(10, new, r.subtask.index)
                           for r in plan.restores for _ in r.handles]  # fmt: skip
        else:
            assert len(read_by) == 1


def test_senders_may_become_more_or_fewer() -> None:
    held = [snapshot((under_way("in", 0),)), snapshot((listed("split", 0),), operator=SOURCE)]
    plan = plan_restore(held, [target(1), target(3, operator=SOURCE)], [exchange()])
    assert restored(plan)["count-0"] == [RestoredHandle(under_way("in", 0))]


def test_records_under_way_keep_the_max_parallelism_of_a_receiver_without_state() -> None:
    held = [
        snapshot((under_way("out", 0),), operator=SOURCE),
        OperatorSnapshot(COUNT, 2, 10, {}),
    ]
    targets = [target(3), target(1, operator=SOURCE)]
    assert plan_restore(held, targets, [exchange()]).max_parallelism[COUNT] == 10
    with pytest.raises(RestoreError, match="lower the parallelism to 10"):
        plan_restore(held, [target(11), target(1, operator=SOURCE)], [exchange()])


def test_records_under_way_on_an_exchange_that_is_gone_are_refused() -> None:
    held = [snapshot((under_way("in", 0),))]
    for allowed in (False, True):
        with pytest.raises(RestoreError, match=r"does not have, or runs in one chain.*savepoint"):
            plan_restore(held, [target(1)], [], allow_non_restored_state=allowed)


def test_records_under_way_on_an_exchange_of_another_kind_are_refused() -> None:
    held = [snapshot((under_way("in", 0, Partitioning.REBALANCE),))]
    with pytest.raises(RestoreError, match="from source to count, which was rebalance and is hash"):
        plan_restore(held, [target(1)], [exchange()])


def test_records_under_way_from_subtask_to_subtask_stay_where_they_are() -> None:
    held = [snapshot((under_way("in", 0, Partitioning.RESCALE),))]
    only = [exchange(Partitioning.RESCALE)]
    assert restored(plan_restore(held, [target(1)], only))
    with pytest.raises(RestoreError, match="a rescale exchange cannot bring to 2 subtasks"):
        plan_restore(held, [target(2)], only)


@pytest.mark.parametrize(
    "broken",
    [
        handle(),  # Keyed, without key groups.
        handle(kind="operator", mode="scattered"),
        handle(kind="operator"),
        handle(kind="other"),
        handle("in/source>count.0/0/0", kind="channel"),
        handle("in/source>count.0/0/0", kind="channel", mode="sideways"),
        handle("over/source>count.0/0/0", kind="channel", mode="hash"),
        handle("in", kind="channel", mode="hash"),
    ],
)
def test_a_handle_that_no_rule_covers_is_an_error(broken: StateHandle) -> None:
    with pytest.raises(ProtocolError, match="no rule restores"):
        plan_restore([snapshot((broken,))], [target(1)])
