"""The API of uploaded pipelines."""

from typing import Any

from django.core.files.uploadedfile import UploadedFile
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import status
from rest_framework.generics import ListAPIView
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import account
from controlplane.base.errors import Invalid
from jobs import uploads
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


class UploadsView(ListAPIView):
    """The list of uploaded pipelines, and the upload of another one."""

    queryset = Artifact.objects.select_related("uploaded_by")
    serializer_class = shapes.UploadSerializer
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
