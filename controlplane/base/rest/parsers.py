"""JSON bodies: bounded, and without text that the database cannot store."""

import json
import re
from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from rest_framework import parsers, renderers
from rest_framework.exceptions import ParseError

from controlplane.base.errors import TooLarge

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class JSONParser(parsers.BaseParser):
    """A JSON object of at most ``WEIR_BODY_BYTES_MAX`` bytes.

    Refused as malformed: any JSON but an object, NaN and infinities, and text with NUL or half a
    surrogate pair, which is JSON but which PostgreSQL's ``jsonb`` cannot store.
    """

    media_type = "application/json"
    renderer_class = renderers.JSONRenderer

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The object in the body."""
        limit = settings.WEIR_BODY_BYTES_MAX
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLarge(f"The body is larger than {limit} bytes, the most that is accepted.")
        try:
            data = json.loads(body.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not valid JSON: {error}") from error
        if not isinstance(data, dict):
            raise ParseError("The body has to be a JSON object.")
        _check_text(data)
        return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_text(data: Any) -> None:
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, str):
            if _UNSTORABLE.search(value):
                raise ParseError("Text must not hold NUL or half a surrogate pair.")
        elif isinstance(value, dict):
            left.extend(value.keys())
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
