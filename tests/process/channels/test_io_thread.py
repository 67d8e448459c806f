"""The I/O thread: calls of other threads, and the baton between a loop and its stand-in."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.waiting import wait_until
from weir.channels import io_thread
from weir.channels.io_thread import LOOK_ASLEEP_S, LOOK_MAX_S, LOOK_MIN_S, IoThread

DEADLINE_S = 60.0
LONG_S = 600.0  # Of a sleep that is to be ended.


@contextmanager
def running(thread: IoThread) -> Iterator[IoThread]:
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


class Interrupted(IoThread):
    """A call comes in when the thread has looked for calls and is about to sleep."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__("io-test", on_crash=pytest.fail)
        self.function: Callable[[], None] | None = function

    def _sleep_s(self, timeout_s: float | None) -> float | None:
        seconds = super()._sleep_s(timeout_s)
        if (function := self.function) is not None:
            self.function = None
            assert seconds is None, "it is not about to sleep"
            self.call(function)
        return seconds


def test_a_call_that_comes_in_as_the_thread_falls_asleep_wakes_it() -> None:
    ran: list[bool] = []
    with running(Interrupted(lambda: ran.append(True))):
        wait_until(lambda: ran, "the call has run")


def test_calls_without_a_wake_up_run_with_the_next_one() -> None:
    ran: list[int] = []
    with running(IoThread("io-test", on_crash=pytest.fail)) as io:
        for number in range(10):
            io.call(lambda number=number: ran.append(number), wake=False)  # type: ignore[misc]
        io.wake()
        wait_until(lambda: len(ran) == 10, "all calls have run")
    assert ran == list(range(10))


class Bytes:
    """An endpoint that notes the thread that serves it, and whether two ever did at once."""

    wants_write = False

    def __init__(self, io: IoThread) -> None:
        self.io = io
        self.reader, self.writer = socket.socketpair()
        self.reader.setblocking(False)
        self.threads: list[str] = []
        self.clashes = 0
        self._is_served = False

    def fileno(self) -> int:
        return self.reader.fileno()

    def on_ready(self, *, readable: bool, writable: bool) -> None:
        self.clashes += self._is_served
        self._is_served = True
        count = len(self.reader.recv(1))
        time.sleep(0)  # Another thread gets its chance here.
        self.threads += [threading.current_thread().name] * count
        self._is_served = False

    def send(self) -> None:
        self.writer.send(b"\0")


class Loop:
    """A loop on a thread of its own: each round does the work it was given, in order."""

    def __init__(self, io: IoThread) -> None:
        self.io = io
        self.rounds = 0
        self.is_quick = False  # It goes on at once, instead of sleeping.
        self._stops = False
        self._work: list[Callable[[], object]] = []
        self._thread = threading.Thread(target=self._run, name="loop-test")
        self._thread.start()

    def do(self, work: Callable[[], object]) -> None:
        self._work.append(work)
        self.io.wake_loop()

    def end(self) -> None:
        self._stops = True
        self.io.wake_loop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self.io.attend(lambda: bool(self._work) or self._stops)
        while not self._stops:
            for _ in range(len(self._work)):
                self._work.pop(0)()
            self.rounds += 1
            if self.is_quick:
                self.io.visit()
            else:
                self.io.wait(LONG_S)
        self.io.leave()


@pytest.fixture
def io() -> Iterator[IoThread]:
    with running(IoThread("io-test", on_crash=pytest.fail)) as io:
        yield io


@pytest.fixture
def endpoint(io: IoThread) -> Iterator[Bytes]:
    endpoint = Bytes(io)
    io.call(lambda: io.add(endpoint))
    yield endpoint
    done = threading.Event()
    io.call(lambda: (io.remove(endpoint), done.set()))  # type: ignore[func-returns-value]
    assert done.wait(DEADLINE_S)
    for sock in (endpoint.reader, endpoint.writer):
        sock.close()
    assert endpoint.clashes == 0


@pytest.fixture
def loop(io: IoThread, endpoint: Bytes) -> Iterator[Loop]:
    loop = Loop(io)
    yield loop
    loop.end()


def served(endpoint: Bytes, count: int = 1) -> list[str]:
    wait_until(lambda: len(endpoint.threads) >= count, "the bytes were read", poll_s=0.001)
    return endpoint.threads[-count:]


def asleep(loop: Loop) -> None:
    wait_until(lambda: loop.io._loop_sleeps, "the loop sleeps", poll_s=0.001)


@contextmanager
def away(loop: Loop) -> Iterator[None]:
    """The loop is in a long call."""
    began, may_go = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert may_go.wait(DEADLINE_S)

    loop.do(work)
    assert began.wait(DEADLINE_S)
    try:
        yield
    finally:
        may_go.set()


def test_without_a_loop_the_stand_in_serves(endpoint: Bytes) -> None:
    endpoint.send()
    assert served(endpoint) == ["io-test"]


def test_a_loop_without_work_serves_itself(loop: Loop, endpoint: Bytes) -> None:
    for number in range(20):
        asleep(loop)
        endpoint.send()
        served(endpoint, number + 1)
    # The machine may take the processor from a loop in its round for long.
    assert endpoint.threads.count("loop-test") >= 10


def test_a_loop_that_has_work_serves_between_its_rounds(loop: Loop, endpoint: Bytes) -> None:
    loop.is_quick = True
    loop.do(lambda: None)
    for number in range(20):
        rounds = loop.rounds
        endpoint.send()
        served(endpoint, number + 1)
        wait_until(lambda rounds=rounds: loop.rounds > rounds, "rounds pass")  # type: ignore[misc]
    loop.is_quick = False
    assert endpoint.threads.count("loop-test") >= 8


def test_while_the_loop_is_away_its_stand_in_serves(loop: Loop, endpoint: Bytes) -> None:
    asleep(loop)
    time.sleep(4 * LOOK_MAX_S)  # Looks have become rare.
    with away(loop):
        for number in range(3):
            endpoint.send()
            assert served(endpoint, number + 1) == ["io-test"] * (number + 1)
        ran: list[str] = []
        loop.io.call(lambda: ran.append(threading.current_thread().name))
        wait_until(lambda: ran, "the call ran")
        assert ran == ["io-test"]
        assert not loop.io.try_now(lambda: ran.append("beside the stand-in"))
        assert ran == ["io-test"]
    asleep(loop)
    endpoint.send()
    assert served(endpoint, 4)[-1] == "loop-test"


def test_periodic_functions_run_on_whoever_serves(loop: Loop) -> None:
    ran: list[str] = []
    loop.io.call(lambda: loop.io.every(0.01, lambda: ran.append(threading.current_thread().name)))
    wait_until(lambda: ran.count("loop-test") >= 3, "the loop runs it, asleep for a minute")
    with away(loop):
        wait_until(lambda: ran.count("io-test") >= 3, "the stand-in runs it")
    before = ran.count("loop-test")
    wait_until(lambda: ran.count("loop-test") >= before + 3, "the loop runs it again")


@pytest.mark.parametrize("late_s", [0.0, 0.2])
def test_a_function_is_called_once_after_its_delay(
    loop: Loop, late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the loop would sleep, and in the order of the delays, also of those that are
    due together.
    """
    ran: list[tuple[int, float]] = []
    began = time.monotonic()

    def hand_over() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(io_thread, "time", SimpleNamespace(monotonic=lambda: began))
            for number in (3, 1, 2):
                loop.io.after(
                    number / 20,
                    lambda number=number: ran.append((number, time.monotonic())),  # type: ignore[misc]
                )
        time.sleep(late_s)

    asleep(loop)
    loop.io.call(hand_over)
    wait_until(lambda: len(ran) == 3, "all have run", LONG_S / 2)
    time.sleep(0.1)
    assert [number for number, _ in ran] == [1, 2, 3]
    assert all(at >= began + number / 20 for number, at in ran)


def test_calls_and_work_of_other_threads_wake_a_loop_at_once(loop: Loop) -> None:
    ran: list[str] = []

    def note() -> None:
        ran.append(threading.current_thread().name)

    for number in range(200):
        if number % 2:
            asleep(loop)  # Else it comes in at any moment of the way there.
        (loop.io.call if number % 4 < 2 else loop.do)(note)
        wait_until(lambda number=number: len(ran) > number, "it ran", poll_s=0.0005)  # type: ignore[misc]
    # Where the processor is taken from the loop in its round for long, its stand-in runs a call.
    assert ran.count("loop-test") >= 100


def test_a_loop_that_comes_back_as_its_stand_in_falls_asleep_gets_the_baton() -> None:
    """The stand-in has looked whether the baton is wanted, and is about to sleep for ever."""

    class Late(IoThread):
        came_back: Callable[[], None] | None = None

        def _sleep_s(self, timeout_s: float | None) -> float | None:
            seconds = super()._sleep_s(timeout_s)
            if timeout_s is None and (come_back := self.came_back) is not None:
                self.came_back = None
                assert seconds is None, "it is not about to sleep"
                come_back()
                wait_until(lambda: self._is_wanted, "the loop is back", poll_s=0)
            return seconds

    with running(Late("io-test", on_crash=pytest.fail)) as io:
        loop = Loop(io)
        with away(loop):
            is_over = threading.Event()
            loop_work = threading.Event()
            loop.do(is_over.set)
            io.came_back = loop_work.set  # type: ignore[attr-defined]
            loop.do(lambda: loop_work.wait(DEADLINE_S))
            io.call(lambda: None)
        assert is_over.wait(DEADLINE_S)
        asleep(loop)
        loop.end()


def test_many_absences_under_traffic_lose_nothing(
    loop: Loop, endpoint: Bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads serve in turn, never at once (the fixture's last assertion)."""
    monkeypatch.setattr(io_thread, "LOOK_ASLEEP_S", LOOK_MIN_S)  # Brief absences are seen as well.
    sent = 0
    for pause_s in [0.0, 0.001, 0.004, 0.012, 0.03, 0.07] * 8:
        loop.do(lambda pause_s=pause_s: time.sleep(pause_s))  # type: ignore[misc]
        for _ in range(20):
            endpoint.send()
            sent += 1
        wait_until(lambda sent=sent: len(endpoint.threads) == sent, "all is read")  # type: ignore[misc]
        with away(loop):  # Until its stand-in has served, however long that takes.
            endpoint.send()
            sent += 1
            assert served(endpoint, sent)[-1] == "io-test"
    assert "loop-test" in endpoint.threads


def test_a_quick_loop_keeps_its_stand_in_from_the_sockets(loop: Loop) -> None:
    """Though the baton lies free at most of its looks; each costs the interpreter lock, so they
    become rare.
    """
    looks: list[float] = []
    pause = loop.io._pause

    def noted(seconds: float) -> None:
        looks.append(seconds)
        pause(seconds)

    loop.io._pause = noted  # type: ignore[method-assign]
    done = threading.Event()

    def round_of_2_ms() -> None:
        time.sleep(0.002)
        if not done.is_set():
            loop.do(round_of_2_ms)

    loop.do(round_of_2_ms)
    try:
        wait_until(lambda: looks.count(LOOK_MAX_S) >= 5, "looks are rare")
    finally:
        done.set()


def test_a_stand_in_hardly_looks_at_a_loop_that_sleeps(loop: Loop) -> None:
    """Each look wakes a processor, of an idle job as well."""
    looks: list[float] = []
    pause = loop.io._pause

    def noted(seconds: float) -> None:
        looks.append(seconds)
        pause(seconds)

    asleep(loop)
    loop.io._pause = noted  # type: ignore[method-assign]
    wait_until(lambda: len(looks) >= 2, "it looks")
    assert looks[:2] == [LOOK_ASLEEP_S] * 2


def test_the_thread_alone_bears_its_name(loop: Loop) -> None:
    """For ``ps``: whichever thread serves first."""
    asleep(loop)

    def names() -> list[str]:
        return [comm.read_text().strip() for comm in Path("/proc/self/task").glob("*/comm")]

    wait_until(lambda: "io-test" in names(), "it has its name")
    assert names().count("io-test") == 1


def test_a_signals_handler_wakes_a_sleeping_loop() -> None:
    """Here the loop is the main thread, as in a worker process."""
    with running(IoThread("io-test", on_crash=pytest.fail)) as io:
        came: list[float] = []

        def on_signal(*_: object) -> None:
            came.append(time.monotonic())
            io.wake_loop()

        before = signal.signal(signal.SIGUSR2, on_signal)
        sent: list[float] = []

        def send() -> None:
            wait_until(lambda: io._loop_sleeps, "the loop sleeps", poll_s=0.001)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGUSR2)

        sender = threading.Thread(target=send)
        try:
            io.attend(lambda: bool(came))
            sender.start()
            io.wait(LONG_S)
            assert sent
            assert came
            assert time.monotonic() - sent[0] < LONG_S / 2
        finally:
            io.leave()
            sender.join(DEADLINE_S)
            signal.signal(signal.SIGUSR2, before)


def test_a_bug_in_an_endpoint_ends_the_process_from_the_loop_too() -> None:
    crashes: list[BaseException] = []
    with running(IoThread("io-test", on_crash=crashes.append)) as io:
        io.attend(lambda: False)
        io.wait(0)  # From now on the baton is the loop's.
        io.call(lambda: 1 // 0, wake=False)  # type: ignore[arg-type, return-value]
        with pytest.raises(ZeroDivisionError):
            io.wait(LONG_S)
        io.leave()
    assert [type(crash) for crash in crashes] == [ZeroDivisionError]
