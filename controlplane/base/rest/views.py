"""The base of API views of one object, and the schema of lists."""

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.generics import GenericAPIView, ListAPIView


class OneView(GenericAPIView):
    """A view of one object, without pages."""

    pagination_class = None
    filter_backends = ()


def list_schema(
    operation_id: str, summary: str, *, tag: str, parameters: Sequence[OpenApiParameter] = ()
) -> Any:
    """The OpenAPI schema of a list; its description is the view's docstring."""

    def decorate(view: type[ListAPIView]) -> type[ListAPIView]:
        get = extend_schema(
            operation_id=operation_id,
            tags=[tag],
            summary=summary,
            description=view.__doc__,
            parameters=list(parameters),
        )
        return extend_schema_view(get=get)(view)

    return decorate
