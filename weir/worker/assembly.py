"""The assembly of a slot's subtasks from the execution graph, with their restored state.

Operators of a chain are opened from the tail to the head, so that an operator may emit in ``open``:
all operators behind it are ready.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from weir.common.clock import Clock
from weir.common.row_codec import encode_rows
from weir.config import CheckpointingMode, JobConfig
from weir.fault_points import reach
from weir.graph.exchanges import exchange_name
from weir.graph.key_groups import key_group_range
from weir.graph.logical import Edge
from weir.graph.physical import Chain, ExecutionGraph
from weir.ids import CheckpointId, OperatorId, StateHandle, SubtaskId
from weir.operators.base import Operator, OperatorContext
from weir.operators.input_position import InputPosition
from weir.output.output_claims import check_output_claimed
from weir.protocol.deployment import Delivered, Deploy, OperatorRestore
from weir.protocol.elements import Records
from weir.protocol.unaligned import make_handler
from weir.state.backends.budget import MemoryBudget
from weir.state.backends.choice import open_tables
from weir.state.channel_state import KIND, decode_records
from weir.state.store import OperatorStateStore
from weir.storage.attempt_claims import check_claimed
from weir.storage.layout import JobLayout
from weir.storage.local_copies import LocalCopies, StateReader
from weir.storage.store import CheckpointStore, store_for
from weir.storage.writer import writer_factory
from weir.worker.chain_output import ChainedOperator, ChainOutput, Targets
from weir.worker.gates import InputGates, OutputGate
from weir.worker.partitioners import ByKey, make_partitioner
from weir.worker.ports import Inbox, Reporter, SnapshotThread, Transport
from weir.worker.snapshotter import Snapshotter
from weir.worker.subtask import Subtask


def build_subtasks(
    plan: ExecutionGraph,
    config: JobConfig,
    deploy: Deploy,
    slot_index: int,
    *,
    inbox: Inbox,
    transport: Transport,
    reporter: Reporter,
    snapshot_thread: SnapshotThread,
    clock: Clock,
    open_store: Callable[[str | None], CheckpointStore] = store_for,
    copies: LocalCopies | None = None,
    entering: Callable[[SubtaskId], None] = lambda chain: None,
    budget: MemoryBudget | None = None,
) -> list[Subtask]:
    """Every chain's subtask of this slot, restored, opened and running.

    Args:
        copies: The slot's copies of state files; None: the job keeps none.
        entering: Called with each subtask before its operators are created and opened.
        budget: The memory for the tables of all of them; None: unlimited.

    Raises:
        CorruptStateError: A state file is damaged.
        StorageError: This machine does not see the job's storage, or its output.
        WeirError: An operator cannot be opened with its settings and state.
    """
    store, restored = open_store(deploy.storage), open_store(deploy.restored_storage)
    if deploy.storage == deploy.restored_storage and deploy.reads_files:
        # Else files that are not mounted here would be taken for damaged.
        check_claimed(store, deploy.job_id, deploy.attempt)
    snapshotter = Snapshotter(
        deploy.attempt,
        writer_factory(
            store,
            deploy.job_id,
            deploy.attempt,
            config.checkpoints,
            durable=bool(deploy.storage),
            open_store=open_store,
            copies=copies,
        ),
        snapshot_thread,
        inbox=inbox,
        reporter=reporter,
        clock=clock,
    )
    budget = budget or MemoryBudget()
    restores = {restore.subtask: restore for restore in deploy.restores}
    subtasks = []
    for chain in plan.chains:
        if slot_index >= chain.parallelism:
            continue
        entering(SubtaskId(chain.head, slot_index))
        started = clock.monotonic_ns()
        reader = StateReader(restored, deploy.restored_directory, copies)
        subtask, restored_bytes = _build(
            chain, plan, config, deploy, slot_index, restores, reader, snapshotter,
            transport=transport, reporter=reporter, clock=clock, budget=budget,
        )  # fmt: skip
        elapsed_ms = (clock.monotonic_ns() - started) / 1e6
        details: dict[str, object] = {"restored_bytes": restored_bytes, "restore_ms": elapsed_ms}
        subtask.start(details | reader.details())
        subtasks.append(subtask)
    return subtasks


def _build(
    chain: Chain,
    plan: ExecutionGraph,
    config: JobConfig,
    deploy: Deploy,
    slot_index: int,
    restores: dict[SubtaskId, OperatorRestore],
    reader: StateReader,
    snapshotter: Snapshotter,
    *,
    transport: Transport,
    reporter: Reporter,
    clock: Clock,
    budget: MemoryBudget,
) -> tuple[Subtask, int]:
    head = SubtaskId(chain.head, slot_index)
    max_parallelism = dict(deploy.max_parallelism)
    gates: dict[int, OutputGate] = {}
    outputs: list[OutputGate] = []
    exchange_of = {
        id(edge): exchange for edge, exchange in zip(plan.graph.edges, plan.exchanges, strict=True)
    }
    for edge, channels in zip(chain.out_edges, plan.outputs[head], strict=True):
        groups = max_parallelism[edge.target]
        partitioner = make_partitioner(edge, len(channels), groups, seed=slot_index)
        gates[id(edge)] = OutputGate(
            channels, partitioner, transport, config.channels, exchange_of[id(edge)]
        )
        outputs.append(gates[id(edge)])
    operators: dict[OperatorId, Operator] = {
        uid: plan.operator(uid).factory() for uid in chain.operators
    }
    chained: list[ChainedOperator] = []
    position = InputPosition()
    restored_bytes = 0
    head_output: ChainOutput | None = None
    for uid in reversed(chain.operators):
        node, subtask = plan.operator(uid), SubtaskId(uid, slot_index)
        groups = max_parallelism[uid]
        key_groups = key_group_range(groups, node.parallelism, slot_index)
        restore = restores.get(subtask)
        reach("restore.before", subtask=str(subtask), attempt=deploy.attempt)
        state = OperatorStateStore(
            key_groups,
            groups,
            keyed=node.keyed,
            operator=uid,
            allow_pickled_state=config.allow_pickled_state,
            allow_non_restored_state=config.allow_non_restored_state,
            restored=[h for h in restore.handles if h.handle.kind != KIND] if restore else (),
            read=reader.read,
            clock=clock,
            tables=open_tables(config.state, key_groups, budget) if node.keyed else None,
            restored_id=base_of(deploy),
        )
        restored_bytes += state.restored_bytes
        head_output = _output(chain, uid, operators, gates, reuse=config.object_reuse)
        context = OperatorContext(
            job_id=deploy.job_id,
            attempt=deploy.attempt,
            subtask=subtask,
            name=node.name,
            parallelism=node.parallelism,
            max_parallelism=groups,
            key_groups=key_groups,
            output=head_output,
            state=state,
            clock=clock,
            parameters=dict(config.parameters),
            checkpointing=config.checkpoints.interval_ms is not None,
            deliver=_delivery(deploy, subtask, reporter, pickles=config.allow_pickled_state),
            lineage=deploy.lineage,
            rewinds_output=deploy.rewinds_output,
            object_reuse=config.object_reuse,
            secrets=dict(deploy.secrets),
            location=node.location,
            position=position,
            on_error=node.on_error,
            adopts=deploy.adopts,
            allows_pickles=config.allow_pickled_state,
        )
        if node.files is not None and node.files in deploy.claimed_output:
            check_output_claimed(node.files, deploy.job_id, deploy.attempt)
        operators[uid].open(context)
        chained.append(ChainedOperator(subtask, operators[uid], state))
    assert head_output is not None
    exchanges = [exchange_of[id(edge)] for edge in chain.in_edges]
    inputs = InputGates(plan.inputs[head], transport, config.channels, exchanges)
    if (restore := restores.get(head)) is not None:
        restored_bytes += _restore_backlog(
            inputs,
            restore,
            [edge.selector for edge in chain.in_edges],
            max_parallelism[chain.head],
            chain.parallelism,
            read=reader.read,
            pickles=config.allow_pickled_state,
        )
    in_order = [
        channel.id
        for channel in inputs.channels.values()
        if not exchanges[channel.gate_index].may_be_overtaken
    ]
    mode: CheckpointingMode = config.checkpoints.mode
    return (
        Subtask(
            head,
            deploy.attempt,
            chained[::-1],
            inputs,
            [edge.input_index for edge in chain.in_edges],
            outputs,
            head_output,
            make_handler(
                tuple(inputs.channels), mode, config.checkpoints.alignment_timeout_ms, in_order
            )
            if chain.in_edges
            else None,
            config=config,
            clock=clock,
            reporter=reporter,
            snapshotter=snapshotter,
        ),
        restored_bytes,
    )


def base_of(deploy: Deploy) -> CheckpointId | None:
    """The restored checkpoint, if its files are the job's own, in the storage that it writes to.

    Those of a savepoint belong to its user, and those of another job to that job: either may delete
    them, so the first checkpoint names none of them.
    """
    is_own = (deploy.restored_storage, deploy.restored_directory) == (
        deploy.storage,
        JobLayout(deploy.job_id).directory,
    )
    return deploy.restored_checkpoint if is_own and deploy.storage is not None else None


def _restore_backlog(
    inputs: InputGates,
    restore: OperatorRestore,
    selectors: Sequence[Any],
    max_parallelism: int,
    parallelism: int,
    *,
    read: Callable[[StateHandle], bytes],
    pickles: bool,
) -> int:
    """Put the restored records that were under way to a subtask before all others; their bytes.

    A handle with key groups holds records of other subtasks too, which are left out.
    """
    gate_indexes = {exchange.name: index for index, exchange in enumerate(inputs.exchanges)}
    size = 0
    for piece in restore.handles:
        if piece.handle.kind != KIND:
            continue
        size += piece.handle.size
        gate_index = gate_indexes[exchange_name(piece.handle.name)]
        records = decode_records(read(piece.handle), piece.handle.name, pickles=pickles)
        if piece.key_groups is not None:
            by_key = ByKey(selectors[gate_index], max_parallelism, parallelism)
            records = list(_of_subtask(records, by_key, restore.subtask.index))
        inputs.restore(gate_index, records)
    return size


def _of_subtask(records: Iterable[Records], by_key: ByKey, index: int) -> Iterator[Records]:
    for one in records:
        for target, share in by_key.split(one.payload):
            if target == index:
                yield Records(share, len(share), one.size * len(share) // one.count)


def _output(
    chain: Chain,
    uid: OperatorId,
    operators: dict[OperatorId, Operator],
    gates: dict[int, OutputGate],
    *,
    reuse: bool,
) -> ChainOutput:
    def targets(tag: str | None) -> Targets:
        def leads(edge: Edge) -> bool:
            return edge.source == uid and edge.side_tag == tag

        return Targets(
            [(operators[e.target], e.input_index) for e in chain.inner_edges if leads(e)],
            [gates[id(e)] for e in chain.out_edges if leads(e)],
            reuse=reuse,
        )

    edges: Sequence[Edge] = (*chain.inner_edges, *chain.out_edges)
    tags = {e.side_tag for e in edges if e.source == uid and e.side_tag is not None}
    return ChainOutput(targets(None), {tag: targets(tag) for tag in sorted(tags)})


def _delivery(
    deploy: Deploy, subtask: SubtaskId, reporter: Reporter, *, pickles: bool
) -> Callable[[CheckpointId, list[Any]], None]:
    def deliver(checkpoint_id: CheckpointId, rows: list[Any]) -> None:
        data = encode_rows(rows, pickles=pickles)
        reporter.report(Delivered(deploy.attempt, subtask, checkpoint_id, data))

    return deliver
