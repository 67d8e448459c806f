"""Files that are read on threads of their own, as on a file server that hangs."""

import os
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from controlplane.base.threads import FileOnThreads, FileThreads
from tests.waiting import wait_until

PATIENCE_S = 30.0


class Slow:
    """A file whose first read hangs until it is answered."""

    def __init__(self, answers: threading.Event) -> None:
        self.is_closed = False
        self._answers = answers
        self._reads = 0

    def read(self, length: int = -1, /) -> bytes:
        self._reads += 1
        if self._reads == 1:
            assert self._answers.wait(PATIENCE_S)
        return b"late"

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileThreads]:
    """Two threads, whose callers wait for a moment."""
    threads = FileThreads(2, "files")
    monkeypatch.setattr(threads, "run", partial(threads.run, wait_s=0.1))
    yield threads
    threads.close()


def test_a_file_is_read_to_its_end_and_closed(threads: FileThreads) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"abcdef")
    os.close(writer)
    file = os.fdopen(reader, "rb")
    streamed = FileOnThreads(threads, file)
    assert [streamed.read(4), streamed.read(4), streamed.read(4)] == [b"abcd", b"ef", b""]
    assert not file.closed
    streamed.close()
    assert file.closed


def test_a_read_that_hangs_is_given_up_and_closes_the_file_in_the_end(threads: FileThreads) -> None:
    answers = threading.Event()
    slow = Slow(answers)
    streamed = FileOnThreads(threads, slow)
    with pytest.raises(TimeoutError, match="did not answer"):
        streamed.read(4)
    streamed.close()
    assert not slow.is_closed, "closing would have waited for the read"
    answers.set()
    wait_until(lambda: slow.is_closed, "the file is closed", PATIENCE_S)
