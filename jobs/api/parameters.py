"""The field of a pipeline's parameters in requests."""

import json
import math
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers


@extend_schema_field(
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
)
class ParametersField(serializers.DictField):
    """An object of texts, numbers and flags. A pipeline gets texts: the last two as in JSON."""

    def to_internal_value(self, data: Any) -> dict[str, str]:
        """The parameters as texts.

        Raises:
            ValidationError: A value is null, an object or a list, or a number out of range.
        """
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type=type(data).__name__)
        wrong = [name for name, value in data.items() if not _is_plain(value)]
        if wrong:
            said = "Give a text, a number, or true or false."
            raise serializers.ValidationError({name: [said] for name in wrong})
        return {n: v if isinstance(v, str) else json.dumps(v) for n, v in data.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | bool | int)
