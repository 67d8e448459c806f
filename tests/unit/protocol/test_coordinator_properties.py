"""Any interleaving of events: what must hold after every step, and what the commands add up to."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import (
    CHAINS,
    ack,
    decline,
    finished,
    given_up,
    handle,
    not_written,
    plan,
    requested,
    subtask,
    written,
)
from weir.config import CheckpointConfig, Retention
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol import retention
from weir.protocol.coordinator import (
    CoordinatorState,
    Step,
    acknowledge,
    check_invariants,
    next_due_ms,
    step,
)
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.lineage import NO_END, UNKNOWN, AttemptBase, Lineage, lineage_of
from weir.protocol.messages import (
    Acknowledged,
    CheckpointCompleted,
    CheckpointingStarted,
    CheckpointingStopped,
    CoordinatorCommand,
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    JobEnded,
    RecordAborted,
    RecordCompleted,
    Tick,
    TimeLost,
    TriggerCheckpoint,
    TriggerFailed,
    WriteManifest,
)
from weir.protocol.pending import AckResult
from weir.protocol.wire import from_wire, to_wire

configs = st.builds(
    CheckpointConfig,
    interval_ms=st.sampled_from([None, 20, 50]),
    timeout_ms=st.sampled_from([30, 200]),
    min_pause_ms=st.sampled_from([0, 10, 60]),
    concurrent_max=st.integers(1, 3),
    tolerable_failures=st.integers(0, 2),
    retained_max=st.integers(1, 2),
    retention=st.sampled_from(Retention),
    abandoned_ttl_ms=st.sampled_from([0, 100, 10_000]),
)
kinds = st.sampled_from(
    [*[CheckpointKind.CHECKPOINT] * 4, CheckpointKind.SAVEPOINT, CheckpointKind.STOP_DRAIN]
)
# What happens next, and numbers to choose with where it happens.
moves = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["ack"] * 8,
                *["all ack"] * 3,
                *["written"] * 4,
                *["time"] * 4,
                *["request"] * 3,
                "decline",
                "not written",
                "trigger failed",
                "give up",
                "lose time",
                "finish",
                "stop",
                *["start"] * 2,
                "repeat",
                "repeat",
            ]
        ),
        st.integers(0, 1_000_000),
        kinds,
    ),
    min_size=30,  # Left alone, most scripts would be too short to complete anything.
    max_size=80,
)


@dataclass
class World:
    """Peers that send anything correct ones may, and what the commands told them."""

    state: CoordinatorState
    now_ms: int = 0
    sent: list[CoordinatorEvent] = field(default_factory=list)
    accepted: dict[int, set[str]] = field(default_factory=dict)  # Chains by checkpoint id.
    triggered: list[int] = field(default_factory=list)
    manifests: set[int] = field(default_factory=set)  # Asked for and not settled.
    completed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    notified: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    bases: dict[AttemptNumber, AttemptBase] = field(default_factory=dict)
    lineage: Lineage = UNKNOWN  # Of the newest attempt.

    def send(self, event: CoordinatorEvent) -> Step:
        before = self.state
        done = step(before, event, self.now_ms)
        check_invariants(done.state)
        if done.result in (AckResult.DUPLICATE, AckResult.LATE, AckResult.STALE_ATTEMPT):
            assert done.state == before
            assert all(isinstance(c, DiscardHandles) for c in done.commands)
        if isinstance(event, Acknowledged) and done.result is AckResult.ACCEPTED:
            chains = self.accepted.setdefault(event.checkpoint_id, set())
            assert str(event.chain) not in chains
            chains.add(str(event.chain))
        self.state = done.state
        for command in done.commands:
            match command:
                case TriggerCheckpoint(attempt, barrier, sources):
                    assert attempt == self.state.attempt
                    assert sources
                    base_id = barrier.options.base_id
                    if barrier.options.kind is not CheckpointKind.CHECKPOINT:
                        assert base_id is None
                    elif barrier.checkpoint_id not in self.triggered:
                        assert base_id in ({before.base_id, done.state.base_id, 0})
                    if barrier.checkpoint_id not in self.triggered:
                        self.triggered.append(barrier.checkpoint_id)
                case WriteManifest(pending):
                    self._check_complete(pending.checkpoint_id, pending.finished)
                    self.manifests.add(pending.checkpoint_id)
                case RecordCompleted(checkpoint, _):
                    assert checkpoint.checkpoint_id in self.manifests
                    settled = before.find_pending(checkpoint.checkpoint_id)
                    assert settled is not None
                    # The files of its base, which its manifest may name, are still there.
                    if (base_id := settled.barrier.options.base_id) and not before.ended:
                        assert base_id in self.completed
                        assert base_id not in self.discarded
                    assert isinstance(event, type(written()))
                    self.manifests.discard(checkpoint.checkpoint_id)
                    self.completed.append(checkpoint.checkpoint_id)
                case RecordAborted(pending, reason, _):
                    if pending.checkpoint_id in self.manifests:
                        assert reason is FailureReason.FINALIZE_CHECKPOINT_FAILURE
                    self.manifests.discard(pending.checkpoint_id)
                    self.aborted.append(pending.checkpoint_id)
                case CheckpointCompleted(_, checkpoint_id):
                    assert checkpoint_id in self.completed
                    self.notified.append(checkpoint_id)
                    if self.state.latest_completed_id == checkpoint_id:
                        counted = [c for c in self.state.completed if c.abandoned_at_ms is None]
                        under_way = {p.barrier.options.base_id for p in self.state.pending}
                        assert len(counted) <= self.state.config.retained_max + len(under_way)
                case DiscardHandles(_):
                    assert isinstance(event, Acknowledged)
                    assert event.checkpoint_id in self.aborted
                case DiscardPending(checkpoint_id):
                    assert checkpoint_id in self.aborted
                case DiscardCheckpoint(checkpoint):
                    assert checkpoint.kind is CheckpointKind.CHECKPOINT
                    assert checkpoint.checkpoint_id in self.completed
                    expires_ms = retention.discard_due_ms(checkpoint, self.state.config)
                    is_over = isinstance(event, JobEnded) or bool(before.ended)
                    assert is_over or expires_ms is None or expires_ms <= self.now_ms
                    self.discarded.append(checkpoint.checkpoint_id)
                case _:
                    pass
        if event not in self.sent:
            self.sent.append(event)
        return done

    def _check_complete(self, checkpoint_id: int, ended: frozenset[object]) -> None:
        chains = self.accepted.get(checkpoint_id, set()) | {str(chain) for chain in ended}
        assert chains == set(CHAINS)

    def check_books(self) -> None:
        """Every id was triggered once, in order, and ended at most one way."""
        assert self.triggered == list(range(1, self.state.next_id))
        settled = [*self.completed, *self.aborted]
        assert len(set(settled)) == len(settled)
        pending = [p.checkpoint_id for p in self.state.pending]
        assert sorted([*settled, *pending]) == self.triggered
        assert self.notified == sorted(set(self.notified))
        assert len(set(self.discarded)) == len(self.discarded)
        kept = {c.checkpoint_id for c in self.state.completed}
        assert not kept & set(self.discarded)
        for checkpoint in self.state.completed if self.state.plan else ():
            is_on_the_line = self.lineage.holds(checkpoint.attempt, checkpoint.checkpoint_id)
            assert (checkpoint.abandoned_at_ms is None) == is_on_the_line

    def start(self, number: int = 0) -> None:
        """The next attempt goes on from the newest checkpoint, or any there is."""
        delay_ms = max(self.state.config.interval_ms or 0, self.state.config.min_pause_ms)
        attempt = AttemptNumber(self.state.attempt + 1)
        completed = self.state.completed
        newest = [c for c in completed if c.checkpoint_id == self.state.latest_completed_id]
        goes_back = number % 3 == 0
        chosen = completed[number % len(completed)] if completed and goes_back else (
            newest[0] if newest else None
        )  # fmt: skip
        restored = chosen and chosen.checkpoint_id
        base = AttemptBase(attempt, self.state.next_id, restored, chosen and chosen.attempt)
        self.bases[attempt] = base
        self.lineage = lineage_of(attempt, NO_END, self.bases)
        started = CheckpointingStarted(attempt, plan(), delay_ms, restored, self.lineage)
        self.send(started)

    def move(self, what: str, number: int, kind: CheckpointKind) -> None:
        attempt = self.state.attempt
        live = [p for p in self.state.pending if not p.is_finalizing]
        pending = live[number % len(live)] if live else None
        ended = self.state.plan.finished if self.state.plan else frozenset()
        chain = CHAINS[number % len(CHAINS)]
        match what:
            case "time":
                self.now_ms += number % 70
                self.send(Tick())
            case "request":
                self.send(requested(f"r{number}", kind))
            case "ack" | "all ack" if pending:
                acks = [
                    ack(name, pending.checkpoint_id, attempt=attempt, handles=(handle(),))
                    for name in (CHAINS if what == "all ack" else (chain,))
                    if subtask(name) not in ended
                ]
                unfit = replace(ack(chain, pending.checkpoint_id, attempt=attempt), operators=())
                check_together(self.state, [*acks[:2], unfit, *acks], self.now_ms)
                for event in acks:
                    self.send(event)
            case "decline" if pending:
                self.send(decline(chain, pending.checkpoint_id, attempt=attempt))
            case "trigger failed" if pending:
                self.send(TriggerFailed(pending.checkpoint_id, "away"))
            case "give up" if self.state.pending:
                any_pending = self.state.pending[number % len(self.state.pending)]
                self.send(given_up(any_pending.checkpoint_id, attempt=any_pending.attempt))
            case "lose time":
                before = [p.expires_at_ms for p in self.state.pending]
                self.send(TimeLost(number % 200))
                after = [p.expires_at_ms for p in self.state.pending]
                assert all(earlier <= later for earlier, later in zip(before, after, strict=True))
            case "written" | "not written" if self.manifests:
                checkpoint_id = min(self.manifests)
                may_exist = number % 2 == 0
                self.send(
                    written(checkpoint_id)
                    if what == "written"
                    else not_written(checkpoint_id, may_exist=may_exist)
                )
            case "finish" if subtask(chain) not in ended:
                upstream = {subtask("source-0"), subtask("source-1")}
                if chain.startswith("source") or upstream <= ended:
                    self.send(finished(chain, attempt=attempt))
            case "stop":
                self.send(CheckpointingStopped(attempt, FailureReason.JOB_FAILOVER))
            case "start" if self.state.plan is None:
                self.start(number)
            case "repeat" if self.sent:
                event = self.sent[number % len(self.sent)]
                if isinstance(event, Acknowledged):
                    check_together(self.state, [event, event], self.now_ms)
                # Each loss of time is one of its own, however long it is.
                if not isinstance(event, Tick | TimeLost):
                    self.send(event)
            case _:
                pass


def check_together(state: CoordinatorState, acks: list[Acknowledged], now_ms: int) -> None:
    """Acknowledgements folded in together do as they do one after another."""
    tally = acknowledge(state, acks, now_ms)
    results: list[AckResult | str] = []
    commands: list[CoordinatorCommand] = []
    for event in acks:
        try:
            done = step(state, event, now_ms)
        except ProtocolError as error:
            results.append(str(error))
            continue
        state = done.state
        commands += done.commands
        assert isinstance(done.result, AckResult)
        results.append(done.result)
    assert tally.step.state == state
    assert list(tally.step.commands) == commands
    said = [
        str(result) if isinstance(result, ProtocolError) else result for result in tally.results
    ]
    assert said == results


def play(config: CheckpointConfig, script: list[tuple[str, int, CheckpointKind]]) -> World:
    world = World(CoordinatorState(config=config))
    world.start()
    for what, number, kind in script:
        world.move(what, number, kind)
    return world


@settings(max_examples=150)
@given(configs, moves)
def test_any_interleaving_keeps_the_invariants_and_settles_each_checkpoint_once(
    config: CheckpointConfig, script: list[tuple[str, int, CheckpointKind]]
) -> None:
    world = play(config, script)
    world.check_books()


@settings(max_examples=60)
@given(configs, moves, st.sampled_from([JobStatus.FINISHED, JobStatus.FAILED]))
def test_after_any_events_the_end_leaves_nothing_under_way(
    config: CheckpointConfig, script: list[tuple[str, int, CheckpointKind]], status: JobStatus
) -> None:
    world = play(config, script)
    world.send(JobEnded(status))
    for checkpoint_id in sorted(world.manifests):
        world.send(written(checkpoint_id))
    world.check_books()
    assert world.state.pending == ()
    assert world.state.queue == ()
    assert next_due_ms(world.state) is None
    if status is JobStatus.FINISHED:
        assert world.state.completed == ()


@settings(max_examples=60)
@given(configs, moves)
def test_time_alone_ends_all_that_is_not_acknowledged(
    config: CheckpointConfig, script: list[tuple[str, int, CheckpointKind]]
) -> None:
    """The clock asks for nothing any more, manifests get written, no subtask acknowledges."""
    world = play(replace(config, interval_ms=None), script)
    for _ in range(5_000):
        due_ms = next_due_ms(world.state)
        if due_ms is None and not world.manifests:
            break
        if world.manifests:
            world.send(written(min(world.manifests)))
            continue
        assert due_ms is not None
        world.now_ms = max(world.now_ms, due_ms)
        world.send(Tick())
    assert world.state.pending == ()
    assert world.state.queue == ()


@settings(max_examples=40)
@given(configs, moves)
def test_the_state_survives_being_stored(
    config: CheckpointConfig, script: list[tuple[str, int, CheckpointKind]]
) -> None:
    state = play(config, script).state
    assert from_wire(CoordinatorState, to_wire(state)) == state


@settings(max_examples=60)
@given(configs, moves)
def test_a_parent_is_what_the_attempt_last_committed_or_was_restored_from(
    config: CheckpointConfig, script: list[tuple[str, int, CheckpointKind]]
) -> None:
    world = World(CoordinatorState(config=config))
    world.start()
    committed: dict[int, CheckpointId | None] = {}  # By attempt, as its subtasks know it.
    for what, number, kind in script:
        attempt, told = world.state.attempt, len(world.notified)
        world.move(what, number, kind)
        if world.state.attempt != attempt:
            committed[world.state.attempt] = world.state.base_id
        if len(world.notified) > told:
            committed[attempt] = CheckpointId(world.notified[-1])
        for pending in world.state.pending:
            if pending.is_finalizing and pending.attempt == world.state.attempt:
                assert pending.parent_id == committed.get(pending.attempt)
