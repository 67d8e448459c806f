"""A file server with uploads and scripts that does not answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.base.threads import FileThreads, Unavailable
from jobs import pipeline_files


@contextmanager
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The only thread for such files waits for one."""
    answers = threading.Event()
    threads = FileThreads(1, "hung")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_files, "threads", threads)
        with pytest.raises(Unavailable, match=r"did not answer within 0\.01 s"):
            pipeline_files.reach(lambda: answers.wait(60), wait_s=0.01)
        try:
            yield
        finally:
            answers.set()
            threads.close()
