"""The port to the checkpoint coordinator, which runs in this process or in the control plane.

The checkpoint runner hands in events and executes the commands that come back. In library mode
(``LocalCoordination``) they are the coordinator's own, at once. Under the control plane
(``weir.jobmaster.remote_coordination``) those come some time later, as messages, and what comes
back at once is what the driver has to do without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weir.common.clock import Clock
from weir.config import CheckpointConfig
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol import coordinator
from weir.protocol.coordinator import CoordinatorState
from weir.protocol.lifecycle import FailureReason
from weir.protocol.messages import (
    Acknowledged,
    CheckpointAborted,
    CoordinatorCommand,
    CoordinatorEvent,
    Tick,
)


@dataclass(frozen=True, slots=True)
class WithholdManifest:
    """Write a tombstone so that the manifest never appears, and report ``ManifestFailed``."""

    checkpoint_id: CheckpointId
    attempt: AttemptNumber
    cause: str


@dataclass(frozen=True, slots=True)
class DropCheckpoint:
    """Drop the acknowledgements and sizes kept of a checkpoint that came to nothing."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class AbortHere:
    """Tell the subtasks that a checkpoint is aborted, which the coordinator could not decide."""

    command: CheckpointAborted
    reason: FailureReason
    cause: str


RunnerCommand: TypeAlias = CoordinatorCommand | WithholdManifest | DropCheckpoint | AbortHere


class LocalCoordination:
    """The coordinator itself, run in this thread."""

    def __init__(self, config: CheckpointConfig, clock: Clock) -> None:
        self.state = CoordinatorState(config=config)
        self._clock = clock

    def receive(self, event: CoordinatorEvent) -> Sequence[RunnerCommand]:
        """Fold an event in, a tick only once it is due; the commands to execute, in order.

        Raises:
            ProtocolError: A report that no correct worker sends.
        """
        now = self._clock.now_ms()
        if isinstance(event, Tick):
            due = self.next_due_ms()
            if due is None or now < due:
                return ()
        step = coordinator.step(self.state, event, now)
        self.state = step.state
        return step.commands

    def acknowledge(self, acks: Sequence[Acknowledged]) -> Sequence[RunnerCommand]:
        """Fold acknowledgements in, at once; the commands to execute, in order.

        Raises:
            ProtocolError: No correct worker sends one of them; none is folded in.
        """
        tally = coordinator.acknowledge(self.state, acks, self._clock.now_ms())
        for result in tally.results:
            if isinstance(result, ProtocolError):
                raise result
        self.state = tally.step.state
        return tally.step.commands

    def next_due_ms(self) -> int | None:
        """The time at which the coordinator needs its next ``Tick``."""
        return coordinator.next_due_ms(self.state)
