"""The OpenAPI document: its parts that drf-spectacular cannot derive from views, and its page."""

import copy
from functools import cache
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpResponse, HttpResponseBase
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from checkpoints.verdict.result import Cause
from controlplane import schema_examples, schema_words
from controlplane.base import problems
from controlplane.base.converters import JobId
from controlplane.base.rest.views import OneView
from weir.config import CheckpointingMode, RestartStrategyKind
from weir.protocol.elements import CheckpointKind
from weir.protocol.inspection import InspectionKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import Switch
from weir.protocol.operations import Phase
from weir.protocol.slot_memory import MemorySource

# The values of closed sets, by which ENUM_NAME_OVERRIDES recognises and names them.
CAUSES = [member.value for member in Cause]
CHECKPOINT_KINDS = [member.value for member in CheckpointKind]
CHECKPOINT_STATUSES = [member.value for member in CheckpointStatus]
CHECKPOINTING_MODES = [member.value for member in CheckpointingMode]
RESTART_STRATEGY_KINDS = [member.value for member in RestartStrategyKind]
FAILURE_REASONS = [member.value for member in FailureReason]
INSPECTION_KINDS = [member.value for member in InspectionKind]
SAVEPOINT_KINDS = [kind for kind in CHECKPOINT_KINDS if kind != CheckpointKind.CHECKPOINT]
JOB_STATUSES = [member.value for member in JobStatus]
PHASES = [member.value for member in Phase]
PREVIEW_KINDS = ["restore", "rollback"]
MEMORY_SOURCES = [member.value for member in MemorySource]
SUBTASK_STATUSES = [member.value for member in SubtaskStatus]
SWITCHES = [member.value for member in Switch]

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "A problem with a request (RFC 9457).",
    "required": ["type", "title", "status", "detail", "code", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The problem, and what to do."},
        "code": {"type": "string", "description": "The problem's code, the same in every version."},
        "instance": {"type": "string", "description": "The request's path."},
        "request_id": {
            "type": "string",
            "description": "The request's id in the control plane's log.",
        },
        "errors": {
            "type": "object",
            "description": "The messages by field; nested fields are joined by dots.",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
        },
        "state": {"type": "string", "description": "The state that does not allow the request."},
        "allowed": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The states that allow the request.",
        },
        "operation": {"type": "string", "description": "The operation that has to end first."},
        "needed_by": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The users of the savepoint, because of which it is not deleted.",
        },
    },
    "additionalProperties": True,
}
_EXAMPLE = {
    "type": "urn:weir:problem:wrong_state",
    "title": "Not possible in the job's state",
    "status": 409,
    "detail": "the job is finished already",
    "code": "wrong_state",
    "instance": "/api/v1/jobs/flights-1a2b3c4d/cancel",
    "request_id": "3f2a7c1e5b9d4f60",
    "state": "finished",
    "allowed": ["running"],
}
_EVENTS: dict[str, Any] = {  # Beside Django: controlplane.event_streams.
    "operationId": "follow_job",
    "summary": "Follow a job",
    "description": (
        "Server-sent events for browsers, with a session and no token: each event `snapshot` holds "
        "as JSON what the job's page shows, at most ten a second. Each is whole, so a slow reader "
        "gets fewer of them. A comment comes every 15 seconds; the stream ends with the session."
    ),
    "tags": ["jobs"],
    "security": [{"session": []}],
    "parameters": [
        {
            "name": "job_id",
            "in": "path",
            "required": True,
            "description": "The job's id.",
            "schema": {"type": "string", "pattern": f"^{JobId.regex}$"},
        }
    ],
    "responses": {
        "200": {
            "description": "The stream, until the client closes it.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'retry: 2000\n\nid: 1\nevent: snapshot\ndata: {"job": …}\n\n',
                }
            },
        },
        **{
            status: {"$ref": f"#/components/responses/Problem{status}"}
            for status in ("401", "404", "429")
        },
        "default": {"$ref": "#/components/responses/Problem"},
    },
}
_SAID = {
    "400": "The request is malformed; `errors` names the fields.",
    "401": "The request has neither a login nor a valid token.",
    "403": "The role is too low.",
    "404": "The requested object does not exist.",
    "409": "The job's state does not allow it, or another operation is under way.",
    "412": "It was changed since the version that `If-Match` names.",
    "413": "The body is too large.",
    "415": "The body is of another type.",
    "428": "The server wants `If-Match` with changes.",
    "422": "The idempotency key was used for another request.",
    "429": "Too many requests; `Retry-After` says how long to wait.",
    "default": "Any other problem, such as a database outage (503).",
}


def complete(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add the possible problem responses to every operation of the document."""
    schemas = result["components"]["schemas"]
    schemas["Problem"] = copy.deepcopy(_PROBLEM)
    schema_words.describe(schemas)
    content = {
        problems.CONTENT_TYPE: {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "examples": {"WrongState": {"value": _EXAMPLE}},
        }
    }
    result["components"]["responses"] = {
        _name_of(status): {"description": said, "content": content}
        for status, said in _SAID.items()
    }
    for name, schema in schemas.items():
        if name.endswith("Request") and schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
    schema_examples.add_examples(result)
    for path in result["paths"].values():
        for operation in path.values():
            for status in _statuses(operation):
                operation["responses"].setdefault(
                    status, {"$ref": f"#/components/responses/{_name_of(status)}"}
                )
            if "multipart/form-data" in operation.get("requestBody", {}).get("content", ()):
                operation["requestBody"]["required"] = True
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "job_id":
                    parameter["schema"]["pattern"] = f"^{JobId.regex}$"
                elif parameter["in"] == "path" and parameter["schema"]["type"] == "integer":
                    parameter["schema"]["minimum"] = 0
    result["paths"]["/events/jobs/{job_id}"] = {"get": copy.deepcopy(_EVENTS)}
    return result


def _statuses(operation: dict[str, Any]) -> list[str]:
    parameters = operation.get("parameters", ())
    statuses = ["401", "403", "429", "default"]
    if "requestBody" in operation:
        statuses += ["400", "413", "415"]
    if any(parameter["in"] == "query" for parameter in parameters):
        statuses.append("400")
    if any(parameter["in"] == "path" for parameter in parameters):
        statuses.append("404")
    if any(parameter["name"] == "If-Match" for parameter in parameters):
        statuses += ["412", "428"]
    if "202" in operation["responses"]:
        statuses += ["409", "422"]
    return statuses


def _name_of(status: str) -> str:
    return "Problem" if status == "default" else f"Problem{status}"


class SessionScheme(OpenApiAuthenticationExtension):
    """The OpenAPI scheme of a login."""

    target_class = "rest_framework.authentication.SessionAuthentication"
    name = "session"
    priority = 1  # Before drf-spectacular's own.

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """A session cookie."""
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "sessionid",
            "description": "A login in the browser; changes need the header `X-CSRFToken` too.",
        }


# The lists below ``/api/v1/``, by the names of their URLs.
_LISTS = (
    *("jobs", "operations", "checkpoints", "savepoints", "uploads", "secrets", "alerts", "rules"),
    *("silences", "endpoints", "deliveries", "tokens", "users", "audit"),
)


class RootSerializer(serializers.Serializer[Any]):
    """The way to everything else."""

    resources = serializers.DictField(
        child=serializers.URLField(), help_text="The URLs of the lists, by name."
    )
    me = serializers.URLField(help_text="The account and the role of the request.")
    schema = serializers.URLField(help_text="The OpenAPI document.")
    docs = serializers.URLField(help_text="The OpenAPI document as a page.")
    dashboard = serializers.URLField(help_text="The pages for people.")


class RootView(OneView):
    """A view of what the API has."""

    serializer_class = RootSerializer

    @extend_schema(operation_id="get_root", tags=["api"], summary="Show what there is")
    def get(self, request: Request) -> Response:
        """The URLs of the lists, of the OpenAPI document and of the dashboard."""
        names = ("me", "schema", "docs")
        links: dict[str, Any] = {name: reverse(f"api:{name}", request=request) for name in names}
        links["resources"] = {name: reverse(f"api:{name}", request=request) for name in _LISTS}
        links["dashboard"] = reverse("job-list", request=request)
        return Response(self.get_serializer(links).data)


class SchemaView(SpectacularAPIView):
    """A view of the OpenAPI document."""

    query_parameters = ("lang", "version")

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        """OpenAPI 3.1, as YAML or JSON by `Accept` or `?format=`."""
        renderer = request.accepted_renderer
        name = f"Weir.{renderer.format}"
        return HttpResponse(
            _document(renderer.media_type),
            content_type=renderer.media_type,
            headers={"Content-Disposition": f'inline; filename="{name}"'},
        )


@cache
def _document(media_type: str) -> bytes:
    """The OpenAPI document in one format, made once: it changes with the program alone."""
    renderers = {one.media_type: one for one in SchemaView.renderer_classes}
    content: bytes = renderers[media_type]().render(SchemaGenerator().get_schema(public=True))
    return content


class DocsView(SpectacularSwaggerSplitView):
    """The page of the document, by Swagger UI, with its script in a file of its own."""

    url_name = "api:schema"
    template_name = "api_docs.html"
    query_parameters = ("script",)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the page, or redirect to the login."""
        if not request.user.is_authenticated and "Authorization" not in request.headers:
            return redirect_to_login(request.get_full_path())
        return super().dispatch(request, *args, **kwargs)
