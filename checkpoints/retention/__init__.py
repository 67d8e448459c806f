"""Retention: which files are still referenced, and the deletion of those that are not."""
