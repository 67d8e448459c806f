"""The pages of uploaded pipelines: the list, the source of one, and the difference of two."""
