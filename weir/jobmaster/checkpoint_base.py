"""The base of an attempt's checkpoints: the restored one, on which their manifests go on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.graph.physical import ExecutionGraph
from weir.ids import CheckpointId, OperatorId, SubtaskId
from weir.jobmaster.job_description import JobDescription
from weir.jobmaster.restore_choice import RestoreChoice
from weir.jobmaster.triggered_checkpoints import TriggeredCheckpoints
from weir.protocol.lineage import UNKNOWN, Lineage
from weir.protocol.messages import OperatorAck
from weir.protocol.pending import PendingCheckpoint
from weir.secrets import job_secrets
from weir.storage.manifest import Manifest, OperatorSummary


@dataclass(frozen=True, slots=True)
class CheckpointBase:
    """The restored checkpoint, as later ones need it."""

    restored_from: CheckpointId | None = None
    lineage: Lineage = UNKNOWN
    max_parallelism: Mapping[OperatorId, int] = field(default_factory=dict)
    source_records: Mapping[str, int] = field(default_factory=dict)  # Emitted up to it, by source.
    knows_all_records: bool = True  # They count from the job's beginning.

    @classmethod
    def from_choice(
        cls, choice: RestoreChoice, plan: ExecutionGraph, known: TriggeredCheckpoints
    ) -> "CheckpointBase":
        """The base of an attempt that restores this choice."""
        records: Mapping[str, int] = {}
        knows_all = True
        if choice.manifest is not None:
            records, knows_all = (
                choice.manifest.source_records,
                bool(choice.manifest.source_records),
            )
            if not knows_all and (own := known.get(choice.manifest.checkpoint_id)) is not None:
                records = own.source_records
        uids = {op.uid for op in plan.graph.operators if op.is_source}
        return cls(
            choice.checkpoint_id,
            choice.lineage,
            choice.plan.max_parallelism,
            {uid: int(n) for uid, n in records.items() if uid in uids},
            knows_all,
        )

    def records_with(
        self, plan: ExecutionGraph, acks: Mapping[SubtaskId, OperatorAck]
    ) -> dict[str, int]:
        """The records that each source has emitted up to these acknowledgements."""
        uids = [op.uid for op in plan.graph.operators if op.is_source]
        total = {uid: self.source_records.get(uid, 0) for uid in uids}
        for subtask in plan.source_subtasks:
            if (ack := acks.get(subtask)) is not None:
                total[subtask.operator] += ack.metrics.records
        return {str(uid): count for uid, count in total.items()}

    def manifest(
        self,
        pending: PendingCheckpoint,
        acks: Mapping[SubtaskId, OperatorAck],
        took_ms: int,
        job: JobDescription,
    ) -> Manifest:
        """The manifest of a checkpoint that all subtasks have acknowledged."""
        plan = job.plan
        return Manifest(
            job_id=job.job_id,
            job_name=plan.graph.name,
            checkpoint_id=pending.checkpoint_id,
            parent_id=pending.parent_id,
            kind=pending.kind,
            attempt=pending.attempt,
            triggered_ms=pending.barrier.triggered_at_ms,
            completed_ms=pending.barrier.triggered_at_ms + took_ms,  # One clock for both.
            versions=job.versions,
            operators=tuple(
                OperatorSummary(
                    op.uid,
                    job_secrets.masker().text(op.name),
                    op.parallelism,
                    self.max_parallelism[op.uid],
                    is_source=op.is_source,
                    files=op.files,
                )
                for op in plan.graph.operators
            ),
            acks=tuple(ack for _, ack in sorted(acks.items())),
            location=pending.barrier.options.target,
            source_records=self.records_with(plan, acks) if self.knows_all_records else {},
            state_backend=str(job.config.state.backend),
        )
