"""Parts that all views of the API share: parsing, checks of queries, versions of what changes."""
