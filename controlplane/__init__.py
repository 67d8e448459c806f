"""The control plane: Django, Celery, Redis and PostgreSQL around the checkpoint coordinator.

This package wires the apps together and holds the library that they share. ``jobs`` and
``checkpoints``, on top of ``weir.protocol``, decide about jobs and checkpoints.
"""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
