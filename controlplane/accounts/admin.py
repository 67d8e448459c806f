"""Accounts and tokens in the admin site; only the services change roles and tokens."""

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.contrib.auth.models import Group
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from controlplane.accounts import services
from controlplane.accounts.models import Role, Token, User
from controlplane.accounts.permissions import account
from controlplane.audit.admin import AuditedAdmin, ReadOnlyAdmin
from controlplane.base.errors import Refusal

admin.site.unregister(Group)  # Roles take the place of groups.


class UserForm(UserChangeForm):
    """The form of an account; the last admin stays an admin."""

    def clean(self) -> dict[str, Any]:
        """Check that an admin is left, as the services do."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        user = self.instance
        is_admin = given.get("role") == Role.ADMIN and given.get("is_active")
        if user.pk and not is_admin:
            try:
                services.check_admin_left(User.objects.get(pk=user.pk))
            except Refusal as refusal:
                raise forms.ValidationError(refusal.detail) from refusal
        return given


@admin.register(User)
class UserAdmin(AuditedAdmin, DjangoUserAdmin):
    """Accounts. They are closed rather than deleted: their jobs and audit entries keep a name."""

    form = UserForm
    list_display = ["username", "role", "is_active", "email", "last_login"]
    list_filter = ["role", "is_active"]
    filter_horizontal = []
    fieldsets = [
        (None, {"fields": ["username", "password"]}),
        ("Person", {"fields": ["first_name", "last_name", "email"]}),
        ("Permissions", {"fields": ["role", "is_active"]}),
        ("Dates", {"fields": ["last_login", "date_joined"]}),
    ]
    readonly_fields = ["last_login", "date_joined"]

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Save the person's data, and have the services change role and activity."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        role, is_active = Role(obj.role), obj.is_active
        before = User.objects.get(pk=obj.pk)
        obj.role, obj.is_active = before.role, before.is_active
        super().save_model(request, obj, form, change)
        services.set_role(account(request), obj.pk, role)
        services.set_active(account(request), obj.pk, is_active)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """No: accounts are closed instead."""
        return False


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    """Tokens, without their secrets; an action revokes them."""

    list_display = ["name", "hint", "user", "role", "created_at", "expires_at", "revoked_at"]
    list_filter = ["role"]
    list_select_related = ["user"]
    search_fields = ["name", "hint", "user__username"]
    exclude = ["digest"]
    actions = ["revoke"]

    @admin.action(description="Revoke the selected tokens")
    def revoke(self, request: HttpRequest, tokens: QuerySet[Token]) -> None:
        """Revoke the selected tokens: requests with them are refused from now on."""
        for token in tokens:
            services.revoke(account(request), token)
        self.message_user(
            request, "The selected tokens are revoked: requests with them are refused from now on."
        )
