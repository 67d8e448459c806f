"""Celery tasks of deliveries, on a queue and a worker of their own: endpoints may be slow.

The worker has two threads, so that a mail server that hangs (``sweep``) holds up no delivery.
"""

from celery import shared_task
from celery.worker import state

from controlplane.deliveries import sweep as deliveries_sweep
from controlplane.deliveries.dispatcher import Dispatcher

_dispatcher = Dispatcher()


# Acknowledged when it begins: the rows are the queue, and beat sends the next tick in a second.
@shared_task(acks_late=False)
def deliver() -> None:
    """Send the deliveries that are due."""
    _dispatcher.run(should_stop=_is_stopping)


@shared_task(acks_late=False)
def sweep() -> None:
    """Give up deliveries whose time has passed unsent, and tell admins of disabled endpoints."""
    deliveries_sweep.sweep()


def _is_stopping() -> bool:
    return state.should_stop is not None or state.should_terminate is not None
