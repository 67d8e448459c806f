"""The control plane: Django, Celery, Redis and PostgreSQL around the checkpoint coordinator.

This package wires the apps together and holds the library that they share. ``jobs`` and
``checkpoints``, on top of ``weir.protocol``, decide about jobs and checkpoints.
"""

import sys
from types import TracebackType

from django.core.exceptions import ImproperlyConfigured

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in a line what is wrong with the settings, in every program."""
    if isinstance(error, ImproperlyConfigured):
        print(f"{error}.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _end
