"""Parts of paths that are checked before anything else is."""

from django.urls.converters import StringConverter


class JobId(StringConverter):
    """A job's id: nothing else reaches a query."""

    regex = "[A-Za-z0-9_][A-Za-z0-9._-]{0,119}"
