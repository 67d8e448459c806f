"""The ASGI entry point of the web process: ``uvicorn controlplane.asgi:application``."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.dev")
django.setup(set_prefix=False)

from controlplane.web import application  # noqa: E402 - its modules need Django's settings.

__all__ = ["application"]
