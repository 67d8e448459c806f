"""The ASGI entry point of the web process, for ``python -m controlplane.serve``."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.dev")
django.setup(set_prefix=False)

from controlplane.base.hardening import make_undumpable  # noqa: E402
from controlplane.web import application  # noqa: E402 - its modules need Django's settings.

make_undumpable()

__all__ = ["application"]
