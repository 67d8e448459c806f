"""Read-only admin pages of checkpoints, savepoints, coordinators and acknowledgements."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from checkpoints.models import (
    Checkpoint,
    CoordinatorRow,
    GateAlignment,
    Savepoint,
    SubtaskAck,
)
from jobs.admin import ReadOnlyAdmin


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnlyAdmin):
    """Checkpoints and savepoints."""

    list_display = (
        "job_id",
        "number",
        "attempt",
        "kind",
        "status",
        "triggered_at",
        "duration_ms",
        "state_bytes",
        "reason",
        "discard_due_at",
    )
    list_filter = ("status", "kind", "reason")
    search_fields = ("job__id",)
    date_hierarchy = "triggered_at"
    raw_id_fields = ("parent",)


@admin.register(Savepoint)
class SavepointAdmin(ReadOnlyAdmin):
    """Savepoints, with their names and directories."""

    list_display = ("job_id", "name", "location", "created_by", "created_at", "deleted_at")
    search_fields = ("job__id", "name", "location")
    date_hierarchy = "created_at"
    raw_id_fields = ("checkpoint", "operation", "claimed_by")


@admin.register(CoordinatorRow)
class CoordinatorAdmin(ReadOnlyAdmin):
    """Coordinators; the list leaves out their states, which may be large."""

    list_display = ("job_id", "due_at", "next_trigger_at", "expires_at", "has_ended", "swept_at")
    search_fields = ("job__id",)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[CoordinatorRow]":
        """All coordinators, their states deferred."""
        return super().get_queryset(request).defer("state")


@admin.register(SubtaskAck)
class SubtaskAckAdmin(ReadOnlyAdmin):
    """Acknowledgements."""

    list_display = ("checkpoint", "operator", "index", "acknowledged_at", "alignment_ms", "sync_ms")
    list_select_related = ("checkpoint",)
    search_fields = ("checkpoint__job__id", "operator")


@admin.register(GateAlignment)
class GateAlignmentAdmin(ReadOnlyAdmin):
    """Alignments, one for each input gate."""

    list_display = ("checkpoint", "operator", "index", "gate")
    list_select_related = ("checkpoint",)
    search_fields = ("checkpoint__job__id", "operator")
