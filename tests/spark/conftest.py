"""One Spark context for all tests that want the same master, and a look at what each test leaves.

A context is started when a test first asks for its master, and stopped when one asks for another.
"""

import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil
import pytest
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from tests.spark.harness import (
    SESSION,
    processes_of,
    threads_of_weir,
    wait_until_gone,
)
from tests.waiting import wait_until
from weir.spark import python_daemon
from weir.spark.submit import open_session

LOCAL = "local[4]"
WORK = Path(_find_spark_home(), "work")


class Contexts:
    """The one Spark context there is."""

    def __init__(self, tests: pytest.Session) -> None:
        self._tests = tests
        self._master: str | None = None
        self._context: SparkContext | None = None

    def at(self, master: str) -> SparkContext:
        """The context of a master; another one is stopped."""
        if self._context is None or self._master != master:
            self.stop()
            self._context, _ = open_session(master, 0, "tests")
            self._master = master
            signal.signal(signal.SIGINT, self._interrupt)  # Instead of Spark's.
        return self._context

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """End the tests too: a job that runs is canceled, as a user's, and its test goes on."""
        self._tests.shouldstop = "Ctrl-C"
        signal.default_int_handler(number, frame)

    def stop(self) -> None:
        """End the context."""
        if self._context is not None:
            self._context.stop()
            # The JVM stays and hands its first context's settings on to those that follow, and a
            # local cluster has no secret to authenticate with.
            self._context._jvm.java.lang.System.clearProperty("spark.authenticate")
            self._context = None


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The mark in the environment of every process that the tests start.

    A JVM that is killed cannot clean up, so Spark writes into directories that pytest removes; but
    for those of local clusters, which are always beside Spark itself.
    """
    before = set(WORK.glob("app-*"))
    name = uuid.uuid4().hex
    scratch = str(tmp_path_factory.mktemp("spark"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SESSION, name)
        patch.setenv("SPARK_LOCAL_DIRS", scratch)
        options = f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData -XX:+UseSerialGC"
        patch.setenv("JDK_JAVA_OPTIONS", options)
        yield name
    for directory in set(WORK.glob("app-*")) - before:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def contexts(session: str, request: pytest.FixtureRequest) -> Iterator[Contexts]:
    """Spark contexts for the whole run."""
    contexts = Contexts(request.session)
    yield contexts
    contexts.stop()


@pytest.fixture
def local(contexts: Contexts) -> SparkContext:
    """Spark in this process, with four cores."""
    return contexts.at(LOCAL)


@pytest.fixture(autouse=True)
def nothing_left(session: str) -> Iterator[None]:
    """Fails a test that leaves a process or a thread."""
    yield
    wait_until_gone(lambda: [p for p in processes_of(session) if not _is_of_spark(p, session)])
    wait_until(lambda: not threads_of_weir(), lambda: f"no thread is left of {threads_of_weir()}")


def _is_of_spark(process: psutil.Process, session: str) -> bool:
    """Whether it belongs to the shared Spark: its JVMs, and their Python daemons without tasks."""
    try:
        if process.environ()[SESSION] != session:
            return False  # Of a driver that a test started.
        command, parent = process.cmdline(), process.parent()
        if python_daemon.MODULE in command:
            # A slot is a fork of the daemon, and has to be gone.
            return parent is not None and python_daemon.MODULE not in parent.cmdline()
        return process.name() == "java"
    except psutil.Error:
        return True  # It has just ended.
