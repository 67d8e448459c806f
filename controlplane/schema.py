"""The OpenAPI document: what drf-spectacular cannot read off the views, and the page beside it."""

from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpResponseBase
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.base import problems
from controlplane.base.converters import JobId
from weir.config import CheckpointingMode
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.operations import Phase

# The values by which ENUM_NAME_OVERRIDES recognises and names closed sets.
CHECKPOINT_KINDS = [member.value for member in CheckpointKind]
CHECKPOINT_STATUSES = [member.value for member in CheckpointStatus]
CHECKPOINTING_MODES = [member.value for member in CheckpointingMode]
FAILURE_REASONS = [member.value for member in FailureReason]
SAVEPOINT_KINDS = [kind for kind in CHECKPOINT_KINDS if kind != CheckpointKind.CHECKPOINT]
JOB_STATUSES = [member.value for member in JobStatus]
PHASES = [member.value for member in Phase]
PREVIEW_KINDS = ["restore", "rollback"]
SUBTASK_STATUSES = [member.value for member in SubtaskStatus]

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "What is wrong with a request (RFC 9457).",
    "required": ["type", "title", "status", "detail", "code", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "code": {"type": "string", "description": "The same in every version."},
        "instance": {"type": "string", "description": "The request's path."},
        "request_id": {"type": "string", "description": "To be found in the log."},
        "errors": {
            "type": "object",
            "description": "The messages by field; nested fields are joined by dots.",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
        },
        "state": {"type": "string", "description": "Which state does not allow it."},
        "allowed": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Which states would.",
        },
        "operation": {"type": "string", "description": "The operation that is in the way."},
        "needed_by": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What needs the savepoint that was to be deleted.",
        },
    },
    "additionalProperties": True,
}
_EXAMPLE = {
    "type": "urn:weir:problem:wrong_state",
    "title": "Not in this state",
    "status": 409,
    "detail": "the job is finished already",
    "code": "wrong_state",
    "instance": "/api/v1/jobs/flights-1a2b3c4d/cancel",
    "request_id": "3f2a7c1e5b9d4f60",
    "state": "finished",
    "allowed": ["running"],
}
_SAID = {
    "400": "The request is malformed; `errors` names the fields.",
    "401": "No login, and no token that counts.",
    "403": "The role is not enough.",
    "404": "There is no such thing.",
    "409": "The job's state does not allow it, or another operation is under way.",
    "413": "The body is too large.",
    "415": "The body is of another type.",
    "422": "The idempotency key came with another request before.",
    "429": "Too many requests; `Retry-After` says how long to wait.",
    "default": "Any other problem, such as the database being away (503).",
}


def complete(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add to every operation the problems it may answer with."""
    schemas = result["components"]["schemas"]
    schemas["Problem"] = _PROBLEM
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
    if "202" in operation["responses"]:
        statuses += ["409", "422"]
    return statuses


def _name_of(status: str) -> str:
    return "Problem" if status == "default" else f"Problem{status}"


class SessionScheme(OpenApiAuthenticationExtension):
    """How the document names a login."""

    target_class = "rest_framework.authentication.SessionAuthentication"
    name = "session"
    priority = 1  # Before drf-spectacular's own.

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """The session's cookie."""
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "sessionid",
            "description": "A login in the browser; changes need the header `X-CSRFToken` too.",
        }


class SchemaView(SpectacularAPIView):
    """The document itself."""

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """OpenAPI 3.1, as YAML or JSON by `Accept` or `?format=`."""
        return super().get(request, *args, **kwargs)


class DocsView(SpectacularSwaggerSplitView):
    """The document to be read and tried, by Swagger UI. Its script is a file, not in the page."""

    url_name = "api:schema"

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer, or send to the login."""
        if not request.user.is_authenticated and "Authorization" not in request.headers:
            return redirect_to_login(request.get_full_path())
        return super().dispatch(request, *args, **kwargs)
