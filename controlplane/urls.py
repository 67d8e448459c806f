"""The URL conf of Django; ``controlplane.web`` has the routes beside it."""

from django.contrib import admin
from django.urls import include, path

from controlplane import metrics
from frontend.login.views import admin_urlpatterns

urlpatterns = [
    *admin_urlpatterns,
    path("admin/", admin.site.urls),
    path("api/v1/", include("controlplane.api")),
    path("metrics", metrics.view, name="metrics"),
    path("", include("frontend.urls")),
]

handler400 = "controlplane.base.problems.bad_request"
handler403 = "controlplane.base.problems.permission_denied"
handler404 = "controlplane.base.problems.not_found"
handler500 = "controlplane.base.problems.server_error"
