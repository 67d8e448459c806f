"""Requests for a change of pipeline that bring the script itself, instead of its digest."""

from io import BytesIO
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from rest_framework import serializers
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request

from controlplane.accounts.permissions import account
from controlplane.base.rest.parsers import JSONParser
from controlplane.base.rest.serializers import RequestSerializer
from jobs import uploads
from jobs.models import PipelineKind

FORM = {
    "type": "object",
    "required": ["file"],
    "additionalProperties": False,
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "A Python script; its name ends in `.py`. It is stored as an upload.",
        },
        "request": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "The other fields, as a JSON object without `pipeline`.",
        },
    },
}
PARSERS: tuple[type[BaseParser], ...] = (JSONParser, MultiPartParser)


def read(request: Request, shape: type[RequestSerializer]) -> dict[str, Any]:
    """The validated body of a JSON request, or of a form with the script in the part ``file``.

    The script of a form is stored as an upload, once the rest is valid, and is its ``pipeline``.

    Raises:
        ValidationError, ParseError: The body is not valid.
        Invalid, TooLarge: The script is refused.
    """
    if not (request.content_type or "").startswith("multipart/"):
        return shape.read(request)
    if unknown := sorted(set(request.data) - {"file", "request"}):
        said = "There is no such part; the parts are: file, request."
        raise serializers.ValidationError({name: [said] for name in unknown})
    file = request.data.get("file")
    if not isinstance(file, UploadedFile):
        said = "Give the script as a file in the form's field `file`."
        raise serializers.ValidationError({"file": [said]})
    body = _fields(request.data.get("request", "{}"))
    if "pipeline" in body:
        raise serializers.ValidationError({"pipeline": ["Leave it out: it is the file."]})
    asked = shape(data=body)
    asked.is_valid(raise_exception=True)
    artifact = uploads.store(account(request), file.name or "", file.chunks())
    pipeline = {"kind": PipelineKind.UPLOAD.value, "upload": artifact.digest}
    return {**asked.validated_data, "pipeline": pipeline}


def _fields(given: Any) -> dict[str, Any]:
    if not isinstance(given, str):
        raise serializers.ValidationError({"request": ["Give a JSON object as text."]})
    body: dict[str, Any] = JSONParser().parse(BytesIO(given.encode()))
    return body
