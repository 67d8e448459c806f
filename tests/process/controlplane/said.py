"""Tasks that log a line, for the worker that ``test_celery`` starts."""

import logging

from celery import shared_task
from django.db import connection

from controlplane.base import logs


@shared_task(name="tests.say")
def say(what: str) -> None:
    """Log what is given."""
    with logs.about(job="orders-1", checkpoint=7):
        logging.getLogger("tests.said").info("said %s", what)


@shared_task(name="tests.connect")
def connect() -> None:
    """Log the process of PostgreSQL that serves this task."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        logging.getLogger("tests.said").info("backend %d", *cursor.fetchone())
