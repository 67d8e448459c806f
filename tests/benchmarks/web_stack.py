"""A web process with its servers, for the benchmarks that talk to it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django

from controlplane.embedded.stack import Stack

# One account has all the browsers of a benchmark.
ENVIRONMENT = {"WEIR_LOG_LEVEL": "WARNING", "WEIR_STREAMS_PER_USER_MAX": "200"}


@contextmanager
def web_stack() -> Iterator[Stack]:
    """The web process and its servers, and Django in this process on the same database."""
    home = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    stack = Stack(home, auto_restart=False, environment=ENVIRONMENT)
    before = dict(os.environ)
    try:
        stack.start({"postgres", "redis", "web"})
        os.environ.update(stack.environment)
        django.setup()
        from django.db import connections

        from tests.services import use_database

        use_database(stack.postgres.url)
        try:
            yield stack
        finally:
            connections.close_all()
    finally:
        stack.stop()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home, ignore_errors=True)
