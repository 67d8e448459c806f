"""The description of a job for its slots and workers: graph, settings, program and secrets."""

from dataclasses import dataclass, field

from weir.config import JobConfig
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, JobId
from weir.jobmaster.restore_choice import RestoreChoice
from weir.protocol.deployment import Address, Deploy, Secrets, SlotAccepted, Versions


@dataclass(frozen=True, slots=True)
class JobDescription:
    """One job, as it was submitted to this driver."""

    job_id: JobId
    plan: ExecutionGraph
    config: JobConfig
    program: bytes = field(repr=False)  # The cloudpickled ``(graph, config)`` for the slots.
    versions: Versions
    secrets: Secrets = field(default=(), repr=False)  # The values that functions may get, by name.

    @property
    def slot_count(self) -> int:
        """The number of slots that the job needs."""
        return self.plan.slot_count

    def acceptance(self) -> SlotAccepted:
        """The answer to a slot that registered."""
        state = self.config.state
        return SlotAccepted(
            self.job_id,
            self.program,
            self.secrets,
            keeps_copies=state.local_copies,
            copies_directory=state.local_copies_directory,
        )

    def deployment(
        self,
        attempt: AttemptNumber,
        slot_index: int,
        addresses: tuple[Address, ...],
        choice: RestoreChoice,
        now_ms: int,
    ) -> Deploy:
        """The subtasks and the state of one slot of the plan, in an attempt that restores this."""
        storage = self.config.checkpoints.storage
        return Deploy(
            attempt=attempt,
            job_id=self.job_id,
            slot_addresses=addresses,
            storage=storage,
            restored_checkpoint=choice.checkpoint_id,
            restored_storage=choice.storage or storage,
            restored_directory=choice.directory,
            restores=choice.restores_of_slot(slot_index),
            max_parallelism=tuple(choice.plan.max_parallelism.items()),
            lineage=choice.lineage,
            rewinds_output=choice.rewinds_output,
            adopts=choice.adopts,
            completes_stop=choice.completes_stop,
            claimed_output=choice.claimed_output,
            sent_at_ms=now_ms,
            secrets=self.secrets,
        )
