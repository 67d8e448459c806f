"""Pipelines to start from, and the demonstration that kills a worker and counts every flight."""
