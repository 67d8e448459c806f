"""Path converters: parts of URLs that are checked before any view runs."""

from django.urls.converters import StringConverter


class JobId(StringConverter):
    """A job's id; other text never reaches a query."""

    regex = "[A-Za-z0-9_][A-Za-z0-9._-]{0,119}"


class Digest(StringConverter):
    """A SHA-256 in hexadecimal digits."""

    regex = "[0-9a-f]{64}"


class Uid(StringConverter):
    """An operator's uid, which is any text."""

    regex = "(?s:.*)"

    def to_python(self, value: str) -> str:
        """The uid.

        Raises:
            ValueError: No column holds such a text.
        """
        if "\0" in value:
            raise ValueError("a uid has no NUL")
        return value
