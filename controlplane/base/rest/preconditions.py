"""``ETag`` and ``If-Match``: a change is made to what its sender has seen, or not at all.

The tag names the version of what can be changed, not of the whole response: the counters and the
status of a running job change all the time, and are no reason to refuse its new name.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.db.models import Model
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.base.errors import Refusal

IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    "header",
    description=(
        "The `ETag` of an earlier response: the request is refused (412) if the object was changed "
        "since. `*`: any version. Needed (428) where the server has `WEIR_REQUIRE_IF_MATCH`."
    ),
)
ETAG = OpenApiParameter(
    "ETag",
    str,
    "header",
    description="The version of what can be changed, for `If-Match`.",
    response=[200],
)


class PreconditionFailed(Refusal):
    """The object was changed since its sender has seen it."""

    code = "precondition_failed"
    status = 412
    title = "Changed meanwhile"


class PreconditionRequired(Refusal):
    """A change has to say by ``If-Match`` which version it is about."""

    code = "precondition_required"
    status = 428
    title = "If-Match is needed"


def etag_of(values: Mapping[str, Any]) -> str:
    """The entity tag of these values, which JSON can hold, and times."""
    text = json.dumps(values, sort_keys=True, cls=DjangoJSONEncoder)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def check(request: Request, current: str | None) -> None:
    """Compare a request's ``If-Match`` with the current tag; None: there is no object yet.

    Raises:
        PreconditionFailed: None of its tags is the current one.
        PreconditionRequired: It has none, and the server wants one.
    """
    given = request.headers.get("If-Match")
    if given is None:
        if settings.WEIR_REQUIRE_IF_MATCH and current is not None:
            raise PreconditionRequired(
                "send the header If-Match with the ETag of the version that you have seen, or *"
            )
        return
    tags = {tag.strip() for tag in given.split(",")}
    if current is None or ("*" not in tags and current not in tags):
        raise PreconditionFailed(
            "it was changed since; read it again, and send If-Match with its new ETag"
        )


class Versioned:
    """The version of a view's object: the values of ``version_of``, columns of its row."""

    version_of: tuple[str, ...]

    def tag(self, row: Model) -> str:
        """The entity tag of a row."""
        return etag_of({"id": row.pk, **{name: getattr(row, name) for name in self.version_of}})

    def tagged(self, row: Model, response: Response) -> Response:
        """The response with the row's tag."""
        response.headers["ETag"] = self.tag(row)
        return response

    @contextmanager
    def changing(self, request: Request, lock: Callable[[], Model | None]) -> Iterator[None]:
        """The transaction of a change; ``lock`` returns the row, locked until it ends, if any.

        Raises:
            PreconditionFailed, PreconditionRequired: As ``check``.
        """
        with transaction.atomic():
            row = lock()
            check(request, None if row is None else self.tag(row))
            yield
