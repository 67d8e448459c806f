"""What the API's request bodies share."""

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
                {name: [f"There is no such field; there is {known}."] for name in unknown}
            )
        return super().to_internal_value(data)


class EmptyRequest(RequestSerializer):
    """A body without fields; it may be missing altogether."""
