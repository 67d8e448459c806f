"""A task that logs a line, for the worker that ``test_celery`` starts."""

import logging

from celery import shared_task

from controlplane.base import logs


@shared_task(name="tests.say")
def say(what: str) -> None:
    """Log what is given."""
    with logs.about(job="orders-1", checkpoint=7):
        logging.getLogger("tests.said").info("said %s", what)
