"""Locks by name that are held beside the transactions of their work."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections, transaction

from controlplane.base import advisory_locks
from tests.waiting import TIMEOUT_S

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_second_waits_for_the_first_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisory_locks, "LOOK_AGAIN_S", 0.01)
    waits, has_begun = threading.Event(), threading.Event()

    def second() -> None:
        try:
            with advisory_locks.held_beside("work", waits.set):
                has_begun.set()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with advisory_locks.held_beside("work", lambda: pytest.fail("it was free")):
            later = pool.submit(second)
            assert waits.wait(TIMEOUT_S)
            with transaction.atomic():  # Of the work: the lock outlives it.
                assert not advisory_locks.try_lock("work")
            with connection.cursor() as cursor:  # None that waits holds an index up.
                cursor.execute("CREATE INDEX CONCURRENTLY jobs_while_waited ON jobs_job (name)")
                cursor.execute("DROP INDEX jobs_while_waited")
            assert not has_begun.is_set()
        later.result(TIMEOUT_S)
    assert has_begun.is_set()
