"""A checkpoint laid onto the subtasks of a new execution."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import handle, subtask
from weir.errors import ProtocolError, RestoreError
from weir.graph.key_groups import key_group_range
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


def test_in_flight_data_is_restored_to_the_subtask_it_was_under_way_to() -> None:
    in_flight = handle("gate-0", kind="channel")
    plan = plan_restore([snapshot((in_flight,), ())], [target(2)])
    assert restored(plan) == {"count-0": [RestoredHandle(in_flight)]}


def test_in_flight_data_keeps_every_operator_at_its_parallelism() -> None:
    """Records under way to count were sent by the old number of sources."""
    source = OperatorId("source")
    held = [
        snapshot((handle("gate-0", kind="channel"),)),
        snapshot((listed("split", 0),), operator=source),
    ]
    with pytest.raises(RestoreError, match=r"source from 1 to 2.*take a savepoint"):
        plan_restore(held, [target(1), target(2, operator=source)])
    with pytest.raises(RestoreError, match="source is gone"):
        plan_restore(held, [target(1)], allow_non_restored_state=True)


@pytest.mark.parametrize(
    "broken",
    [
        handle(),  # Keyed, without key groups.
        handle(kind="operator", mode="scattered"),
        handle(kind="operator"),
        handle(kind="other"),
    ],
)
def test_a_handle_that_no_rule_covers_is_an_error(broken: StateHandle) -> None:
    with pytest.raises(ProtocolError, match="no rule restores"):
        plan_restore([snapshot((broken,))], [target(1)])
