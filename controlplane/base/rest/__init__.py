"""Parts that all views of the API share: bodies, filters, pages of lists, versions of changes."""
