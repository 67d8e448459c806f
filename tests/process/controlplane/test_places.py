"""Places for work on files: fewer than a worker's processes, and left by one that is killed."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery.exceptions import Ignore
from celery.signals import worker_init

from checkpoints import tasks
from controlplane.base import ticks
from controlplane.base.ticks import Places
from controlplane.celery import app


@contextmanager
def holder(places: Places) -> Iterator[tuple[int, bool]]:
    """A forked process that asks for a place, tells whether it has one, and hangs in it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with places.one() as is_free:
            os.write(write, b"y" if is_free else b"n")
            signal.pause()
        os._exit(0)
    try:
        yield pid, os.read(read, 1) == b"y"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(("processes", "count"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_a_worker_has_fewer_places_than_processes(processes: int, count: int) -> None:
    places = Places()
    places.share(processes)
    assert places.count == count


def test_a_process_that_hangs_keeps_its_place_until_it_is_killed() -> None:
    places = Places()
    places.share(4)
    with holder(places) as (_, first), holder(places) as (_, second), holder(places) as (_, third):
        assert (first, second, third) == (True, True, False)
        with places.one() as is_free:
            assert not is_free
    with holder(places) as (_, again), places.one() as is_free:
        assert again
        assert is_free


def test_a_place_is_free_again_after_an_error() -> None:
    places, had = Places(), []

    def failing() -> None:
        with places.one() as is_free:
            had.append(is_free)
            raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            failing()
    assert had == [True, True]
    with holder(places) as (_, is_free):
        assert is_free


def test_a_storage_tick_without_a_place_does_nothing_and_is_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The age of its last run, by which a monitoring system knows, grows on."""
    places, begun = Places(), []
    monkeypatch.setattr(tasks, "places", places)
    monkeypatch.setattr(tasks, "run_all", lambda *parts: begun.append(parts))
    with holder(places), pytest.raises(Ignore):
        tasks.storage_tick()
    assert begun == []
    tasks.storage_tick()
    assert len(begun) == 1


class Worker:
    """A Celery worker as its signals show it."""

    def __init__(self, concurrency: int | str) -> None:
        self.concurrency = concurrency


def test_a_worker_shares_places_among_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places()
    monkeypatch.setattr(ticks, "places", places)
    assert app is not None  # Its module receives the signal.
    for concurrency, count in (("auto", 1), (8, 4)):
        worker_init.send(sender=Worker(concurrency))
        assert places.count == count
