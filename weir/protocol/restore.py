"""The restore plan: a completed checkpoint assigned to the subtasks of the next attempt.

Keyed state moves by whole key groups: each new subtask reads, from every old handle that overlaps
its range, the groups that it owns. Operator state moves by its mode: the items of *split* lists are
dealt out in turn, *union* lists go whole to every subtask, *broadcast* state is the same everywhere
and any copy will do. Records that were under way on an exchange go to those receivers which the
exchange's partitioning says (``weir.graph.exchanges``), those that had reached a receiver before
those that still waited at a sender. They fit no other exchange, so the pipeline must still have it.

Source: Flink, StateAssignmentOperation and RoundRobinOperatorStateRepartitioner.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from weir.errors import ProtocolError, RestoreError
from weir.graph.exchanges import Exchange, exchange_name, old_receivers, output_receiver
from weir.graph.key_groups import default_max_parallelism, key_group_range
from weir.graph.logical import Partitioning
from weir.ids import KeyGroupRange, OperatorId, StateHandle, SubtaskId
from weir.protocol.deployment import OperatorRestore, RestoredHandle

# Operator state that holds only the event-time progress. Skipping it on restore loses nothing.
WATERMARK_STATE = "watermark"
# The number of bad records so far, which an operator's limit counts.
BAD_RECORDS_STATE = "bad-records"
CHANNEL = "channel"  # The kind of records that were under way.
# Modes of keyed state that is written incrementally (``weir.state.chains``).
WHOLE, CHANGES = "whole", "changes"
_LEAVABLE = {WATERMARK_STATE, BAD_RECORDS_STATE}


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """The state of one operator in a checkpoint.

    Shape: ``handles`` by old subtask index; a subtask without state may be missing.
    """

    operator: OperatorId
    parallelism: int
    max_parallelism: int
    handles: Mapping[int, tuple[StateHandle, ...]]

    @property
    def has_state(self) -> bool:
        """Whether any subtask of the operator saved anything."""
        return any(self.handles.values())

    @property
    def may_be_left(self) -> bool:
        """Whether the operator saved nothing but its watermark and its count of bad records."""
        return all(
            handle.kind == "operator" and handle.name in _LEAVABLE for handle in _all_handles(self)
        )


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """One operator of the new execution."""

    operator: OperatorId
    parallelism: int
    max_parallelism: int | None = None  # None: not set by the user; the restored one is adopted.


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The state that every subtask of the new execution restores."""

    restores: tuple[OperatorRestore, ...]  # Of the subtasks that restore any.
    max_parallelism: Mapping[OperatorId, int]  # Of every operator of the new execution.
    skipped: tuple[OperatorId, ...] = ()  # Operators whose state is skipped: allowed, or no loss.


def plan_restore(
    snapshots: Iterable[OperatorSnapshot],
    targets: Iterable[RestoreTarget],
    exchanges: Iterable[Exchange] = (),
    *,
    allow_non_restored_state: bool = False,
) -> RestorePlan:
    """Assign the state of a checkpoint to the subtasks of a new execution.

    An operator without state in the checkpoint starts empty. ``exchanges`` are those of the new
    execution that have channels.

    Raises:
        RestoreError: The checkpoint holds state of an operator that the pipeline no longer has, the
            parallelism is above the restored max parallelism, another max parallelism was set, or
            records were under way on an exchange that the pipeline does not have any more; the
            message says what the user can change.
    """
    snapshots = tuple(snapshots)
    for snapshot in snapshots:
        for handle in _all_handles(snapshot):
            _check_handle(handle)
    wanted = {target.operator: target for target in targets}
    holders = {snapshot.operator: snapshot for snapshot in snapshots if snapshot.has_state}
    skipped = tuple(sorted(holders.keys() - wanted.keys()))
    lost = [uid for uid in skipped if not holders[uid].may_be_left]
    if lost and not allow_non_restored_state:
        raise RestoreError(
            f"the checkpoint holds state of {', '.join(lost)}, which the pipeline does not "
            f"have; it has {', '.join(sorted(wanted))}. Give the operator its old uid, or set "
            "allow_non_restored_state to leave that state behind"
        )
    under_way = _by_exchange(snapshots, exchanges)
    # Their records move with the key groups of the receiver, so it keeps its max parallelism.
    receivers = {exchange.target for exchange in under_way}
    by_operator = {
        snapshot.operator: snapshot
        for snapshot in snapshots
        if snapshot.has_state or snapshot.operator in receivers
    }
    matched = [(by_operator[uid], target) for uid, target in wanted.items() if uid in by_operator]
    for snapshot, target in matched:
        _check_max_parallelism(snapshot, target)
    _check_receivers(under_way, by_operator, wanted)
    return RestorePlan(
        restores=tuple(
            OperatorRestore(SubtaskId(target.operator, index), handles)
            for snapshot, target in matched
            for index in range(target.parallelism)
            if (
                handles := (
                    *_handles_for(snapshot, target, index),
                    *_records_for(snapshot, target, index, under_way),
                )
            )
        ),
        max_parallelism={
            uid: (
                by_operator[uid].max_parallelism
                if uid in by_operator
                else target.max_parallelism or default_max_parallelism(target.parallelism)
            )
            for uid, target in wanted.items()
        },
        skipped=skipped,
    )


def _check_max_parallelism(snapshot: OperatorSnapshot, target: RestoreTarget) -> None:
    restored = snapshot.max_parallelism
    if target.max_parallelism is not None and target.max_parallelism != restored:
        raise RestoreError(
            f"{target.operator} has max parallelism {target.max_parallelism}, but its state was "
            f"saved with {restored}; set it to {restored}, or leave it out to adopt that"
        )
    if target.parallelism > restored:
        raise RestoreError(
            f"{target.operator} has parallelism {target.parallelism}, but its state was saved with "
            f"max parallelism {restored}; lower the parallelism to {restored} or less"
        )


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A handle of records under way, and the old subtask that they were under way to."""

    handle: StateHandle
    receiver: int


def _by_exchange(
    snapshots: Iterable[OperatorSnapshot], exchanges: Iterable[Exchange]
) -> dict[Exchange, list[_UnderWay]]:
    """The records under way on each exchange, in the order in which a receiver takes them."""
    known = {exchange.name: exchange for exchange in exchanges}
    inputs: dict[Exchange, list[_UnderWay]] = {}
    outputs: dict[Exchange, list[_UnderWay]] = {}
    for snapshot in snapshots:
        for old_index in sorted(snapshot.handles):
            for handle in snapshot.handles[old_index]:
                if handle.kind != CHANNEL:
                    continue
                exchange = known.get(exchange_name(handle.name))
                if exchange is None or handle.mode != exchange.partitioning:
                    raise RestoreError(_no_exchange(handle, exchange))
                receiver = output_receiver(handle.name)
                side, to = (inputs, old_index) if receiver is None else (outputs, receiver)
                side.setdefault(exchange, []).append(_UnderWay(handle, to))
    return {
        exchange: [*inputs.get(exchange, ()), *outputs.get(exchange, ())]
        for exchange in (*inputs, *outputs)
    }


def _no_exchange(handle: StateHandle, exchange: Exchange | None) -> str:
    name = exchange_name(handle.name)
    problem = f"which the pipeline does not have, or runs in one chain ({name})"
    if exchange is not None:
        problem = (
            f"from {exchange.source} to {exchange.target}, which was {handle.mode} and is "
            f"{exchange.partitioning} now"
        )
    return (
        f"the checkpoint is unaligned and holds records under way on an exchange {problem}. "
        "Restore it with the pipeline as it was, or take a savepoint, which is always aligned, and "
        "restore that"
    )


def _check_receivers(
    under_way: Mapping[Exchange, Sequence[_UnderWay]],
    by_operator: Mapping[OperatorId, OperatorSnapshot],
    wanted: Mapping[OperatorId, RestoreTarget],
) -> None:
    """Check that records under way can reach the receivers of the new execution."""
    for exchange in under_way:
        snapshot, target = by_operator.get(exchange.target), wanted[exchange.target]
        if snapshot is None:
            raise ProtocolError(f"records are under way to {exchange.target}, which is not listed")
        if snapshot.parallelism != target.parallelism and not exchange.may_be_overtaken:
            raise RestoreError(
                f"the checkpoint holds records under way from {exchange.source} to "
                f"{exchange.target}, which a {exchange.partitioning} exchange cannot bring to "
                f"{target.parallelism} subtasks instead of {snapshot.parallelism}. Restore it with "
                "that parallelism, or take a savepoint, which is always aligned, and restore that"
            )


def _records_for(
    snapshot: OperatorSnapshot,
    target: RestoreTarget,
    index: int,
    under_way: Mapping[Exchange, Sequence[_UnderWay]],
) -> Iterator[RestoredHandle]:
    """The records under way that new subtask ``index`` takes over, in order."""
    old, new, groups = snapshot.parallelism, target.parallelism, snapshot.max_parallelism
    for exchange, handles in under_way.items():
        if exchange.target != target.operator:
            continue
        taken = set(old_receivers(exchange.partitioning, index, new, old, groups))
        own = None
        if old != new and exchange.partitioning is Partitioning.HASH:
            own = key_group_range(groups, new, index)
        for one in handles:
            if one.receiver in taken:
                yield RestoredHandle(one.handle, key_groups=own)


def _handles_for(
    snapshot: OperatorSnapshot, target: RestoreTarget, index: int
) -> Iterator[RestoredHandle]:
    """The handles that new subtask ``index`` reads, in a fixed order."""
    if snapshot.parallelism == target.parallelism:
        yield from _own_handles(snapshot, index)
    else:
        yield from _keyed_handles(snapshot, target, index)
        yield from _dealt_handles(snapshot, target, index)
    yield from _union_handles(snapshot)


def _own_handles(snapshot: OperatorSnapshot, index: int) -> Iterator[RestoredHandle]:
    """Unchanged parallelism: each subtask reads its own old handles."""
    for handle in snapshot.handles.get(index, ()):
        if (
            handle.kind != CHANNEL and handle.mode != "union"
        ):  # Union lists are collected from all subtasks.
            yield RestoredHandle(handle, key_groups=handle.key_groups)


def _keyed_handles(
    snapshot: OperatorSnapshot, target: RestoreTarget, index: int
) -> Iterator[RestoredHandle]:
    owned = key_group_range(snapshot.max_parallelism, target.parallelism, index)
    for handle in _all_handles(snapshot):
        if handle.key_groups and (groups := handle.key_groups.intersection(owned)):
            yield RestoredHandle(handle, key_groups=groups)


def _dealt_handles(
    snapshot: OperatorSnapshot, target: RestoreTarget, index: int
) -> Iterator[RestoredHandle]:
    """Changed parallelism: split lists are dealt out, one copy of broadcast state is taken."""
    count = target.parallelism
    operator_handles = (h for h in _all_handles(snapshot) if h.kind == "operator")
    ordered = sorted(operator_handles, key=lambda handle: handle.name)  # Stable: by old subtask.
    for _, group in groupby(ordered, key=lambda handle: handle.name):
        handles = list(group)
        if handles[0].mode == "split":
            # Dealing starts one subtask further for each handle, or short lists, such as one file
            # per source subtask, would all go to subtask 0.
            for position, handle in enumerate(handles):
                yield RestoredHandle(handle, share=((index - position) % count, count))
        elif handles[0].mode == "broadcast":
            yield RestoredHandle(handles[index % len(handles)])


def _union_handles(snapshot: OperatorSnapshot) -> Iterator[RestoredHandle]:
    for handle in _all_handles(snapshot):
        if handle.mode == "union":
            yield RestoredHandle(handle)


def _all_handles(snapshot: OperatorSnapshot) -> Iterator[StateHandle]:
    for old_index in sorted(snapshot.handles):
        yield from snapshot.handles[old_index]


def _check_handle(handle: StateHandle) -> None:
    match handle.kind, handle.mode, handle.key_groups:
        case "keyed", None | "whole" | "changes", KeyGroupRange():
            return
        case "operator", "split" | "union" | "broadcast", None:
            return
        case "channel", str(mode), None if mode in set(Partitioning) and _is_named(handle):
            return
    raise ProtocolError(
        f"no rule restores state {handle.name} of kind {handle.kind}, mode {handle.mode} and key "
        f"groups {handle.key_groups}"
    )


def _is_named(handle: StateHandle) -> bool:
    try:
        output_receiver(handle.name)
    except ValueError:
        return False
    return True
