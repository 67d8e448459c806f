"""Read-only admin pages of jobs. Changes go through the services, which check them."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from jobs.models import Artifact, Attempt, Driver, Job, JobException, Operation


class ReadOnlyAdmin(admin.ModelAdmin):
    """An admin page that only shows rows."""

    list_per_page = 50
    show_full_result_count = False  # It would count the whole table on every page.

    def has_add_permission(self, request: HttpRequest) -> bool:
        """No: the services create rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: the services change rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """No: the services delete rows."""
        return False


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs."""

    list_display = ("id", "name", "status", "desired", "created_by", "created_at", "ended_at")
    list_filter = ("status", "desired", "pipeline_kind")
    list_select_related = ("created_by",)
    search_fields = ("id", "name", "planned_name")
    date_hierarchy = "created_at"


@admin.register(Driver)
class DriverAdmin(ReadOnlyAdmin):
    """Drivers, without the digests of their tokens."""

    list_display = ("job_id", "number", "status", "launched_by", "pid", "heard_at", "cause_line")
    list_filter = ("status", "launched_by")
    search_fields = ("job__id", "spark_application")
    exclude = ("token_digest",)

    @admin.display(description="cause")
    def cause_line(self, driver: Driver) -> str:
        """The first line of the reason why the driver was lost or ended."""
        return driver.cause.partition("\n")[0][:120]


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    """Attempts."""

    list_display = ("job_id", "number", "restored_checkpoint", "started_at", "running_at", "end")
    list_filter = ("end",)
    search_fields = ("job__id",)


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    """Operations."""

    list_display = ("id", "kind", "job_id", "status", "requested_by", "created_at", "ended_at")
    list_filter = ("kind", "status")
    list_select_related = ("requested_by",)
    search_fields = ("id", "job__id")
    date_hierarchy = "created_at"


@admin.register(JobException)
class JobExceptionAdmin(ReadOnlyAdmin):
    """Failures and notices."""

    list_display = ("at", "job_id", "kind", "driver_number", "attempt_number", "subtask")
    list_filter = ("kind",)
    search_fields = ("job__id", "text")
    date_hierarchy = "at"


@admin.register(Artifact)
class ArtifactAdmin(ReadOnlyAdmin):
    """Uploads."""

    list_display = ("digest", "file_name", "size", "uploaded_by", "uploaded_at")
    list_select_related = ("uploaded_by",)
    search_fields = ("digest", "file_name")
