"""The base of the API's request bodies."""

from typing import Any

from rest_framework import serializers


class RequestSerializer(serializers.Serializer):
    """A request body that refuses fields it does not have: a typo must not go unnoticed."""

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
