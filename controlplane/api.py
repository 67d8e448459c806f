"""The URL conf of ``/api/v1/``."""

from django.urls import URLPattern, URLResolver, include, path, register_converter

from controlplane.base.converters import Digest, JobId, Uid
from controlplane.schema import DocsView, RootView, SchemaView

app_name = "api"

register_converter(JobId, "job")
register_converter(Digest, "digest")
register_converter(Uid, "uid")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RootView.as_view(), name="root"),
    path("", include("checkpoints.api.urls")),
    path("", include("jobs.api.urls")),
    path("", include("controlplane.accounts.api")),
    path("", include("controlplane.audit.api")),
    path("", include("controlplane.secrets.api")),
    path("", include("controlplane.deliveries.api.urls")),
    path("", include("controlplane.alerts.api.urls")),
    path("schema", SchemaView.as_view(), name="schema"),
    path("docs", DocsView.as_view(), name="docs"),
]
