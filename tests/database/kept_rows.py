"""Rows and files that all tests of a module begin with, made once.

A fixture of the module's scope makes them within ``kept_rows``. Each of its tests runs in a
transaction of its own within that of the module, so what it changes is gone for the next one. A
module with a test of real transactions (``transaction=True``) can not do so: its other connections
would not see the rows.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import transaction
from pytest_django import DjangoDbBlocker


@contextmanager
def kept_rows(blocker: DjangoDbBlocker) -> Iterator[None]:
    """Keep the rows that are made inside, until the end."""
    with blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def kept_files(directory: Path) -> Iterator[None]:
    """Have the files of a directory at the end as they were at first; a copy lies beside it."""
    aside = directory.with_name(f"{directory.name}-as-made")
    if not aside.exists():
        shutil.copytree(directory, aside)
    yield
    shutil.rmtree(directory)
    shutil.copytree(aside, directory)
