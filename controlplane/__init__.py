"""The control plane: Django, Celery, Redis and PostgreSQL around the checkpoint coordinator.

This package wires the apps together and holds what several of them need. It decides nothing about
jobs or checkpoints: that is ``jobs`` and ``checkpoints``, on top of ``weir.protocol``.
"""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
