"""The API of uploaded pipelines."""

from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import renderers, status
from rest_framework.generics import ListAPIView
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Role
from controlplane.accounts.permissions import account
from controlplane.base.errors import Invalid
from controlplane.base.rest.views import OneView
from jobs import uploads
from jobs.api import filters, requests
from jobs.api import serializers as shapes
from jobs.models import Artifact

UPLOAD = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "A Python script; its name ends in `.py`.",
        }
    },
}
DIGEST = OpenApiParameter(
    "digest",
    {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "path",
    description="The SHA-256 of the upload's content.",
)


class UploadsView(ListAPIView):
    """The list of uploaded pipelines, and the upload of another one."""

    queryset = Artifact.objects.select_related("uploaded_by")
    serializer_class = shapes.UploadSerializer
    filterset_class = filters.UploadFilter
    parser_classes = [MultiPartParser]
    orderings = {"digest": ("digest",), "uploaded_at": ("uploaded_at", "digest")}
    default_ordering = "-uploaded_at"

    @extend_schema(operation_id="list_uploads", tags=["uploads"], summary="List uploads")
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The uploaded pipelines."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="upload_pipeline",
        tags=["uploads"],
        summary="Upload a pipeline",
        request={"multipart/form-data": UPLOAD},
        responses={
            201: OpenApiResponse(
                shapes.UploadSerializer, description="The upload; submit it by its digest."
            )
        },
    )
    def post(self, request: Request) -> Response:
        """Store a Python script, to be submitted by its digest. Equal content is stored once."""
        file = request.data.get("file")
        if not isinstance(file, UploadedFile):
            said = "Give the script as a file in the form's field `file`."
            raise Invalid(said, errors={"file": [said]})
        artifact = uploads.store(account(request), file.name or "", file.chunks())
        return Response(self.get_serializer(artifact).data, status=status.HTTP_201_CREATED)


class UploadView(OneView):
    """A view of one uploaded pipeline."""

    queryset = Artifact.objects.select_related("uploaded_by")
    serializer_class = shapes.UploadSerializer

    @extend_schema(
        operation_id="get_upload", tags=["uploads"], summary="Show an upload", parameters=[DIGEST]
    )
    def get(self, request: Request, digest: str) -> Response:
        """An uploaded pipeline's name and size, and who uploaded it."""
        return Response(self.get_serializer(uploads.one(digest)).data)

    @extend_schema(
        operation_id="rename_upload",
        tags=["uploads"],
        summary="Rename an upload",
        parameters=[DIGEST],
        request=requests.UploadChangeRequest,
        responses=shapes.UploadSerializer,
        examples=[OpenApiExample("A name", {"file_name": "orders_v2.py"}, request_only=True)],
    )
    def patch(self, request: Request, digest: str) -> Response:
        """Change the name under which an upload is listed; jobs that have it keep theirs."""
        given = requests.UploadChangeRequest.read(request)
        renamed = uploads.rename(account(request), digest, given["file_name"])
        return Response(self.get_serializer(renamed).data)

    @extend_schema(
        operation_id="delete_upload",
        tags=["uploads"],
        summary="Delete an upload",
        parameters=[DIGEST],
        responses={204: OpenApiResponse(description="The upload is deleted.")},
    )
    def delete(self, request: Request, digest: str) -> Response:
        """Delete an upload and its file; refused (409) while a job or an operation has it."""
        uploads.delete(account(request), digest)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ScriptRenderer(renderers.BaseRenderer):
    """A renderer that allows ``Accept: text/x-python``; the view makes the response."""

    media_type = "text/x-python"
    format = "py"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The data as they are."""
        return data


class UploadFileView(OneView):
    """A view of an uploaded pipeline's file."""

    roles = {"GET": Role.OPERATOR}  # As with logs: a script may hold anything, secrets too.
    queryset = Artifact.objects.none()
    renderer_classes = [ScriptRenderer]

    @extend_schema(
        operation_id="download_upload",
        tags=["uploads"],
        summary="Download an upload",
        parameters=[DIGEST],
        responses={(200, "text/x-python"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, digest: str) -> FileResponse:
        """The script, byte for byte as it was uploaded. For operators only."""
        artifact = uploads.one(digest)
        return FileResponse(
            uploads.opened(artifact),
            as_attachment=True,
            filename=artifact.file_name,
            content_type="text/x-python",
            headers={"Content-Length": str(artifact.size)},
        )
