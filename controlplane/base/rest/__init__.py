"""Parts that all views of the API share: bodies parsed, queries checked, versions of what changes."""
