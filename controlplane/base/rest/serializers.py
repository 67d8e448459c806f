"""The base of the API's request bodies."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request


class RequestSerializer(serializers.Serializer):
    """A request body that refuses fields it does not have: a typo must not go unnoticed."""

    @classmethod
    def read(cls, request: Request) -> dict[str, Any]:
        """The validated body of a request.

        Raises:
            ValidationError: A field is unknown, missing or wrong.
        """
        asked = cls(data=request.data)
        asked.is_valid(raise_exception=True)
        return dict(asked.validated_data)

    def to_internal_value(self, data: Any) -> Any:
        """The validated values.

        Raises:
            ValidationError: A field is unknown, missing or wrong.
        """
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            known = ", ".join(self.fields) or "none"
            raise serializers.ValidationError(
                {name: [f"There is no such field; the fields are: {known}."] for name in unknown}
            )
        return super().to_internal_value(data)


class EmptyRequest(RequestSerializer):
    """A body without fields; the body may be missing altogether."""


_JSON_TYPES: tuple[tuple[type[serializers.Field], type, str], ...] = (
    (serializers.BooleanField, bool, "true or false"),
    (serializers.IntegerField, int, "a whole number"),
    (serializers.CharField, str, "a text"),
    (serializers.UUIDField, str, "a text"),
)


class TypedRequest(RequestSerializer):
    """A request body whose values have their JSON types: no number stands for a text, say."""

    def to_internal_value(self, data: Any) -> Any:
        """The validated values.

        Raises:
            ValidationError: A field is unknown, missing, wrong or of another type.
        """
        if isinstance(data, dict):
            wrong = {
                name: [f"Give {words}."]
                for name, field in self.fields.items()
                for kind, expected, words in _JSON_TYPES
                if name in data and isinstance(field, kind) and type(data[name]) is not expected
            }
            if wrong:
                raise serializers.ValidationError(wrong)
        return super().to_internal_value(data)
