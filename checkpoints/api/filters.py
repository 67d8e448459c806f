"""Which checkpoints, acknowledgements and channels a list shows."""

import django_filters

from checkpoints.models import Checkpoint, SubtaskAck
from controlplane.filters import ChoicesFilter, WholeNumberFilter, after, before
from jobs.api.filters import choices
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason


class CheckpointFilter(django_filters.FilterSet):
    """Which checkpoints of one job."""

    status = ChoicesFilter(choices(CheckpointStatus))
    kind = ChoicesFilter(choices(CheckpointKind))
    reason = ChoicesFilter(choices(FailureReason))
    attempt = WholeNumberFilter()
    triggered_after = after("triggered_at")
    triggered_before = before("triggered_at")

    class Meta:
        model = Checkpoint
        fields: list[str] = []


class AnyCheckpointFilter(CheckpointFilter):
    """Which checkpoints of all jobs."""

    job = django_filters.CharFilter(field_name="job_id", help_text="The job's id.")


class AckFilter(django_filters.FilterSet):
    """Which acknowledgements."""

    operator = django_filters.CharFilter(help_text="The operator's uid.")
    chain = django_filters.CharFilter(help_text="The uid of the chain's head.")

    class Meta:
        model = SubtaskAck
        fields: list[str] = []
