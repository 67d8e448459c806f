"""Addresses of what Django serves; ``controlplane.web`` has those beside it."""

from django.contrib import admin
from django.urls import include, path

from controlplane import metrics

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("controlplane.api")),
    path("metrics", metrics.view, name="metrics"),
    path("", include("frontend.urls")),
]

handler400 = "controlplane.problems.bad_request"
handler403 = "controlplane.problems.permission_denied"
handler404 = "controlplane.problems.not_found"
handler500 = "controlplane.problems.server_error"
