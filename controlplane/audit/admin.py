"""The audit log in the admin site, read-only."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from controlplane.audit.models import AuditEntry, record

if TYPE_CHECKING:  # The stubs' name for the model of ``AUTH_USER_MODEL``, which lies above.
    from django.contrib.auth.models import _User


class ReadOnlyAdmin(admin.ModelAdmin):
    """Rows that the services alone write."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """No: the services create rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """No: the services change rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """No: the services delete rows."""
        return False


class AuditedAdmin(admin.ModelAdmin):
    """An admin page whose changes leave an audit entry, in the same transaction."""

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        """Note a new row; Django calls this once it is saved."""
        record(_actor(request), f"{_kind(obj)}.create", f"{_kind(obj)}/{obj}", after=_said(message))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        """Note a changed row; Django calls this once it is saved."""
        record(_actor(request), f"{_kind(obj)}.change", f"{_kind(obj)}/{obj}", after=_said(message))
        return super().log_change(request, obj, message)


def _actor(request: HttpRequest) -> "_User":
    assert request.user.is_authenticated  # The admin site lets no other in.
    return request.user


def _kind(obj: Model) -> str:
    return str(obj._meta.model_name)


def _said(message: Any) -> dict[str, Any]:
    return {"message": message}


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """The entries of the audit log."""

    list_display = ["at", "actor_name", "action", "target", "address", "request_id"]
    list_filter = ["action"]
    search_fields = ["actor_name", "action", "target", "request_id"]
    date_hierarchy = "at"
    show_full_result_count = False
