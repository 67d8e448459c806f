"""The dispatcher: takes due deliveries, sends them side by side, settles what comes back.

A flight is a thread that renders, connects and reads, and touches no row: all rows are read and
written by the thread of the task. One run lasts seconds and leaves flights that are still in the
air to the next one, so a slow endpoint holds up neither the others nor the end of the worker. If
the outcomes cannot be written, because the database is away, they are kept for the next run.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from django.conf import settings

from controlplane.base.errors import Refusal
from controlplane.base.threads import DATABASE_AWAY
from controlplane.deliveries import leases, sealing
from controlplane.deliveries.machine import FLIGHTS_MAX
from controlplane.deliveries.models import Delivery
from controlplane.deliveries.notice import Notice
from controlplane.deliveries.receivers import KINDS
from controlplane.deliveries.receivers.base import HttpRequest, Mail, Message
from controlplane.deliveries.sending import http, mail
from controlplane.deliveries.sending.outcome import Outcome, failed
from controlplane.deliveries.settlement import Landed, settle

logger = logging.getLogger(__name__)

RUN_S = 5.0
LOOK_S = 0.05  # Between looks at the rows, while flights are in the air.
TAKE_MIN = 8  # With fewer free places a look is not worth its query.
SETTLED_AT_ONCE = FLIGHTS_MAX


class Dispatcher:
    """The flights of this process. ``run`` is called again and again, by one thread at a time."""

    def __init__(self) -> None:
        self._landings: queue.SimpleQueue[Landed] = queue.SimpleQueue()
        self._flying: set[tuple[UUID, int]] = set()  # Deliveries and numbers of attempts.
        self._unsettled: list[Landed] = []
        self._renewed_s = time.monotonic()
        self._running = threading.Lock()

    def run(self, run_s: float = RUN_S, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Send what is due until nothing is left or ``run_s`` has passed; return the attempts.

        Another thread that runs already makes this call return at once.
        """
        if not self._running.acquire(blocking=False):
            return 0
        try:
            return self._run(time.monotonic() + run_s, should_stop)
        finally:
            self._running.release()

    def _run(self, end_s: float, should_stop: Callable[[], bool]) -> int:
        begun = 0
        while True:
            self._collect()
            self._renew()
            is_over = should_stop() or time.monotonic() >= end_s
            free = FLIGHTS_MAX - len(self._flying)
            taken = [] if is_over or free < TAKE_MIN else leases.take(free)
            for delivery in taken:
                self._launch(delivery)
            begun += len(taken)
            if is_over or not (taken or self._flying or self._unsettled):
                return begun

    def _launch(self, delivery: Delivery) -> None:
        self._flying.add((delivery.pk, delivery.attempts))
        flight = threading.Thread(
            target=lambda: self._landings.put(_flown(delivery)),
            name=f"weir-delivery-{delivery.pk.hex[:8]}",
            daemon=True,  # Holds up no end of the process: its lease ends, and it is repeated.
        )
        flight.start()

    def _collect(self) -> None:
        """Settle the flights that have landed; wait a moment for one if some are in the air."""
        wait_s = LOOK_S if self._flying and not self._unsettled else 0.0
        while len(self._unsettled) < SETTLED_AT_ONCE:
            try:
                landed = self._landings.get(timeout=wait_s) if wait_s else self._landings.get(False)
            except queue.Empty:
                break
            wait_s = 0.0
            self._flying.discard((landed.delivery, landed.number))
            self._unsettled.append(landed)
        if self._unsettled:
            _settle(self._unsettled)
            self._unsettled = []

    def _renew(self) -> None:
        if self._flying and time.monotonic() - self._renewed_s >= leases.RENEW_EVERY_S:
            leases.renew(self._flying)
            self._renewed_s = time.monotonic()


def _settle(landed: Sequence[Landed]) -> None:
    """Settle; should one outcome be impossible to write, settle the others without it."""
    try:
        settle(landed)
    except DATABASE_AWAY:
        raise
    except Exception:
        if len(landed) > 1:
            for one in landed:
                _settle([one])
            return
        # Its lease ends, and the attempt is repeated.
        logger.exception("the outcome of delivery %s could not be written", landed[0].delivery)


def _flown(delivery: Delivery) -> Landed:
    """The landing of a flight, on the flight's own thread. It never raises."""
    assert delivery.leased_until is not None
    began_at, started_s = delivery.leased_until - leases.LEASE, time.monotonic()
    try:
        outcome = _sent(delivery, began_at)
    except Refusal as refusal:  # No key reads the endpoint's secrets.
        outcome = failed(refusal.detail)
    except Exception as error:  # A flight that vanished would keep its lease for ever.
        logger.exception("delivery %s could not be sent", delivery.pk)
        outcome = failed(f"the control plane failed: {type(error).__name__}; its log says more")
    took_s = time.monotonic() - started_s
    return Landed(delivery.pk, delivery.attempts, delivery.endpoint_id, began_at, took_s, outcome)


def _sent(delivery: Delivery, began_at: datetime) -> Outcome:
    endpoint = delivery.endpoint
    sealed = sealing.unseal(endpoint)
    request = rendered(delivery, sealed, began_at)
    if isinstance(request, Mail):
        return mail.send(request)
    outcome = http.post(
        request,
        allow_internal=endpoint.allow_internal,
        timeout_s=settings.WEIR_DELIVERY_TIMEOUT_S,
    )
    return outcome.without(sealed.repeatable())


def rendered(delivery: Delivery, sealed: sealing.Sealed, sent_at: datetime) -> HttpRequest | Mail:
    """The delivery in the shape of its endpoint's kind."""
    message = Message(
        id=delivery.message_id,
        notice=Notice.from_json(delivery.notice),
        sent_at=sent_at,
        source=settings.WEIR_URL,
    )
    endpoint = delivery.endpoint
    return KINDS[endpoint.kind].render(message, sealing.target(endpoint, sealed, sent_at))
