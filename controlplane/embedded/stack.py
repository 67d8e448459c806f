"""All services of the control plane on one machine: started together, watched, ended together.

All files lie in one home directory::

    lock          held by the process that runs the stack
    secret-key    Django's, generated on the first start
    encryption-key  that of the secrets of pipelines, generated on the first start
    port          the web service's, unless one was given
    postgres/     redis/     data, password, port and log of each server
    logs/         one file per service
    run/          process ids, by which a killed stack's processes are found; the web service's URL
    static/  checkpoints/  uploads/  drivers/

Order of start: PostgreSQL and Redis; then, once, migrations and static files; then web, worker,
deliveries (a worker of its own, since endpoints may be slow), launcher and beat. All of these but
the launcher, whose environment is another, are forks of one process that has imported what they
need (``fork_server``). The end comes in the opposite order. The drivers of running jobs are ended
after the control plane, and their rows say that it was planned: the next start relaunches the jobs,
and neither a driver nor a checkpoint counts as failed.
"""

import fcntl
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

from celery import Celery
from kombu.exceptions import OperationalError

from controlplane.embedded.drivers import driver_processes, end_drivers
from controlplane.embedded.fork_server import ForkServer, fork_with
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.process import (
    ChildProcess,
    ServiceError,
    ServiceProcess,
    ServiceStoppedError,
    open_log,
    tail,
)
from controlplane.embedded.program import Program
from controlplane.embedded.redis import Redis
from controlplane.embedded.running import URL_FILE
from controlplane.embedded.server import (
    LOOPBACK,
    is_free,
    kept_port,
    kept_secret,
    write_private,
)
from weir.child_process import popen

# Settings that the stack makes itself.
_OWN_SETTINGS = frozenset({"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "WEIR_ENCRYPTION_KEYS"})
_SAFE_PATH = "PYTHONSAFEPATH"  # Our packages are on the path because programs begin beside them.
BASE_DIR = Path(__file__).resolve().parent.parent.parent
DEFAULT_SETTINGS = "controlplane.settings.dev"
SERVERS = ("postgres", "redis")
PROGRAMS = ("web", "worker", "deliveries", "launcher", "beat")
ALL = (*SERVERS, *PROGRAMS)
# What the programs and commands import, and what the first requests and tasks do.
LOADED = (
    *("controlplane.asgi", "controlplane.urls", "uvicorn.loops.auto", "uvicorn.lifespan.on"),
    *("uvicorn.protocols.http.httptools_impl", "celery.bin.celery", "celery.apps.worker"),
    *("celery.apps.beat", "celery.concurrency.prefork", "celery.concurrency.thread"),
    *("controlplane.alerts.tasks", "controlplane.deliveries.tasks", "controlplane.retention.tasks"),
    *("checkpoints.tasks", "jobs.tasks", "django.core.management.commands.migrate"),
    "django.contrib.staticfiles.management.commands.collectstatic",
)

ONCE_TIMEOUT_S = 180.0
PROGRAM_STOP_TIMEOUT_S = 10.0
SERVER_STOP_TIMEOUT_S = 20.0
WATCH_S = 0.1
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 10.0
STEADY_S = 30.0  # Alive for this long: the next death starts with the first backoff again.
PING_TIMEOUT_S = 0.5


class HomeInUseError(ServiceError):
    """Another stack runs on this home directory."""


class Stack:
    """The services of one home directory.

    ``port`` is the web service's; 0 takes a free one and keeps it for later starts. With
    ``auto_restart`` a service that dies is started again. ``say`` gets one line for each step of a
    start, and for each restart. ``fast`` is PostgreSQL's, for tests. ``environment`` is added to
    the environment of Weir's own processes, which is this process's now.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        auto_restart: bool = True,
        fast: bool = False,
        settings: str = DEFAULT_SETTINGS,
        environment: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.home = home.absolute()
        self._auto_restart = auto_restart
        self._settings = settings
        self._inherited = dict(os.environ)
        self._extra = dict(environment or {})
        self._say = say
        self._port = port
        self._lock_file: int | None = None
        self._fork_server: ForkServer | None = None
        self._watchers: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        self.postgres = Postgres(self.home / "postgres", fast=fast)
        self.redis = Redis(self.home / "redis")
        self._services: dict[str, ServiceProcess] = {
            "postgres": self.postgres,
            "redis": self.redis,
        }

    @property
    def url(self) -> str:
        """The web service's URL. Known once the stack has been started."""
        if not self._port:
            raise ServiceError("the stack has not been started yet")
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of processes of this stack. Known once the servers were started."""
        # Settings of the stack are not inherited, also not by their ``_FILE`` form.
        inherited = {
            key: value
            for key, value in self._inherited.items()
            if key.removesuffix("_FILE") not in _OWN_SETTINGS and key != _SAFE_PATH
        }
        return inherited | {
            "DJANGO_SETTINGS_MODULE": self._settings,
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.redis.url,
            "SECRET_KEY": kept_secret(self.home / "secret-key", length_bytes=48),
            "WEIR_ENCRYPTION_KEYS_FILE": str(self._encryption_key()),
            "WEIR_HOME": str(self.home),
            "WEIR_URL": self.url,
            "PYTHONUNBUFFERED": "1",  # The last output of a killed process reaches its log.
            **self._extra,
        }

    def _encryption_key(self) -> Path:
        """The file with the key of the secrets of pipelines, generated on first use."""
        path = self.home / "encryption-key"
        kept_secret(path, length_bytes=32)
        return path

    def process(self, name: str) -> ServiceProcess:
        """The service with this name."""
        if name not in self._services and name in PROGRAMS:
            self._services[name] = self._program(name)
        return self._services[name]

    def start(
        self,
        only: Collection[str] | None = None,
        *,
        prepare: Sequence[str] | None = ("weir_prepare",),
    ) -> str:
        """Start the services, all or ``only`` some, and return once all are ready.

        May be called again for further services. ``prepare`` is the Django command that
        runs between the servers and the programs; None leaves it out. Returns the command's output.
        When one service fails to start, those that did start are stopped again.

        Raises:
            HomeInUseError: Another stack runs on this home.
            ServiceError: A service failed to start; the end of its log says why.
        """
        names = ALL if only is None else [name for name in ALL if name in only]
        if only is not None and (unknown := set(only) - set(ALL)):
            raise ValueError(f"no such service: {', '.join(sorted(unknown))}")
        servers = [name for name in names if name in SERVERS]
        programs = [name for name in names if name in PROGRAMS]
        lines = iter(self._step_lines(servers, programs, prepares=prepare is not None))
        self._take_home()
        printed = ""
        try:
            if servers:
                self._say(next(lines))
                self._start_all(servers)
            if programs:
                self._choose_port(serves="web" in programs)
                write_private(self.home / "run" / URL_FILE, self.url)
                self._start_fork_server()
                if prepare is not None:
                    self._say(next(lines))
                    printed = self.run_once(*prepare)
                self._say(next(lines))
                self._start_all(programs)
        except BaseException:
            # Without a launcher, all drivers are an earlier run's, which kept them on purpose.
            self.stop(keep_jobs=not self.process("launcher").running)
            raise
        return printed

    def run_once(self, *arguments: str) -> str:
        """Run a command of the control plane against this stack; return its output.

        Raises:
            ServiceError: The command failed; the message has the end of its log.
        """
        log_path = self.home / "logs" / f"{arguments[0]}.log"
        with open_log(log_path) as log, TemporaryFile() as output:
            log_start = log.seek(0, os.SEEK_END)
            process = self._start_once(arguments, output.fileno(), log.fileno())
            try:
                code = process.wait(ONCE_TIMEOUT_S)
            except BaseException as error:
                process.kill()
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise ServiceError(
                    f"{arguments[0]} took longer than {ONCE_TIMEOUT_S:.0f} s:\n"
                    f"{tail(log_path, since=log_start)}"
                ) from error
            if code:
                raise ServiceError(
                    f"{arguments[0]} ended with code {code}:\n{tail(log_path, since=log_start)}"
                )
            output.seek(0)
            return output.read().decode().strip()

    def _start_once(self, arguments: Sequence[str], output: int, log: int) -> ChildProcess:
        command, environment = [sys.executable, "-m", "django", *arguments], self.environment
        server, title = self._fork_server, arguments[0]
        fork = fork_with(server, command, environment, title=title, stdout=output, stderr=log)
        return fork or popen(command, stdout=output, stderr=log, cwd=str(BASE_DIR), env=environment)

    def _start_fork_server(self) -> None:
        """Start it, once for all starts of programs; only Linux can signal what is no child."""
        if self._fork_server is None and sys.platform == "linux":
            with open_log(self.home / "logs" / "fork-server.log") as log:
                self._fork_server = ForkServer(
                    LOADED, environment=self.environment, directory=BASE_DIR, log=log
                )

    def stop(self, *, keep_jobs: bool = False) -> None:
        """End all services in order; with ``keep_jobs`` the drivers of running jobs go on."""
        self._stopping.set()
        for service in self._services.values():
            service.give_up()
        for watcher in self._watchers.values():
            watcher.join()
        self._watchers.clear()
        self._stop_all(PROGRAMS, PROGRAM_STOP_TIMEOUT_S)
        if not keep_jobs and self._lock_file is not None:
            self._end_drivers(self.home / "drivers")
        if self._fork_server is not None:
            self._fork_server.end()
            self._fork_server = None
        self._stop_all(SERVERS, SERVER_STOP_TIMEOUT_S)
        self._leave_home()
        self._stopping.clear()

    def _end_drivers(self, directory: Path) -> None:
        """End the drivers' processes, and record meanwhile that this was planned."""
        if not driver_processes(directory):
            return
        with ThreadPoolExecutor(1, thread_name_prefix="weir-suspend") as pool:
            recorded = pool.submit(self.run_once, "weir_suspend")
            end_drivers(directory)
            try:
                recorded.result()
            except ServiceError as error:
                self._say(f"the drivers' end could not be recorded as planned: {error}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # The home directory.

    def _take_home(self) -> None:
        if self._lock_file is not None:
            return
        self.home.mkdir(parents=True, exist_ok=True)
        # Root's PostgreSQL runs as another user, who passes through; all secrets are 0600 files.
        self.home.chmod(0o711 if os.geteuid() == 0 else 0o700)
        for name in ("logs", "run"):
            (self.home / name).mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode().strip() or "unknown"
            os.close(lock)
            raise HomeInUseError(
                f"Weir already runs on {self.home}, as process {holder}; stop that one, or choose "
                "another home directory"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock_file = lock
        self._end_leftovers()

    def _end_leftovers(self) -> None:
        """End the services of a killed stack, but not its drivers, which the launcher finds."""
        for names in (PROGRAMS, SERVERS):
            with ThreadPoolExecutor(len(names), thread_name_prefix="weir-leftover") as pool:
                ended = pool.map(lambda name: self.process(name).end_leftover(), names)
            for name, was_there in zip(names, ended, strict=True):
                if was_there:
                    self._say(f"{name}: ended the process that an earlier run left behind")

    def _leave_home(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)  # Releases the lock.
            self._lock_file = None

    def _choose_port(self, *, serves: bool) -> None:
        if not self._port:
            self._port = kept_port(self.home / "port")
        elif serves and not self.process("web").running and not is_free(self._port):
            raise ServiceError(
                f"port {self._port} is taken by another program; choose another one, or 0 for any"
            )

    # Starting, watching and stopping.

    def _step_lines(
        self, servers: Sequence[str], programs: Sequence[str], *, prepares: bool
    ) -> list[str]:
        """A line for each step of a start: its work, its usual duration, and the next step."""
        steps: list[tuple[str, str, int]] = []
        if servers:
            steps.append(("starting", self._listed(servers), 3))
        if programs and prepares:
            steps.append(("preparing", "database and static files", 5))
        if programs:
            steps.append(("starting", self._listed(programs), 8))
        lines = []
        for number, (verb, what, seconds) in enumerate(steps, 1):
            after = f"; next: {steps[number][1]}" if number < len(steps) else ""
            lines.append(f"step {number} of {len(steps)}: {verb} {what}, about {seconds} s{after}")
        return lines

    def _listed(self, names: Sequence[str]) -> str:
        *others, last = [self.process(name).name for name in names]
        return f"{', '.join(others)} and {last}" if others else last

    def _start_all(self, names: Sequence[str]) -> None:
        pool = ThreadPoolExecutor(max(1, len(names)), thread_name_prefix="weir-start")
        try:
            starts: list[Future[None]] = [pool.submit(self.process(name).start) for name in names]
            for start in starts:
                start.result()
        except BaseException:
            for name in names:  # Cancels the starts of the other services.
                self.process(name).give_up()
            raise
        finally:
            pool.shutdown()
        for name in names:
            if self._auto_restart and name not in self._watchers:
                watcher = threading.Thread(
                    target=self._watch, args=(name,), name=f"weir-watch-{name}"
                )
                self._watchers[name] = watcher
                watcher.start()

    def _watch(self, name: str) -> None:
        """Start ``name`` again whenever it dies without having been stopped."""
        service = self.process(name)
        backoff_s = BACKOFF_FIRST_S
        alive_s = 0.0
        while not self._stopping.wait(WATCH_S):
            if service.running or not service.wanted:
                alive_s += WATCH_S
                continue
            if alive_s >= STEADY_S:
                backoff_s = BACKOFF_FIRST_S
            alive_s = 0.0
            self._say(f"{name} ended unexpectedly; starting it again in {backoff_s:.1f} s")
            if self._stopping.wait(backoff_s):
                return
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
            if not service.wanted:
                continue
            try:
                service.start()
            except ServiceStoppedError:
                continue
            except Exception as error:  # No exception may end the watcher.
                self._say(f"{name} could not be started again: {error}")
            else:
                self._say(f"{name} is back")

    def _stop_all(self, names: Sequence[str], timeout_s: float) -> None:
        services = [self._services[name] for name in names if name in self._services]
        if not services:
            return
        with ThreadPoolExecutor(len(services), thread_name_prefix="weir-stop") as pool:
            for stop in [pool.submit(one.stop, timeout_s=timeout_s) for one in services]:
                stop.result()

    # The programs.

    def _program(self, name: str) -> Program:
        return Program(
            name,
            lambda: self._command(name),
            log_path=self.home / "logs" / f"{name}.log",
            pid_path=self.home / "run" / f"{name}.json",
            directory=BASE_DIR,
            environment=lambda: self._environment_of(name),
            answers={
                "web": self._web_answers,
                "worker": self._celery_answers("worker@weir"),
                "deliveries": self._celery_answers("deliveries@weir"),
                "launcher": self._celery_answers("launcher@weir"),
                # Written before beat's first tick; the suffix depends on the platform.
                "beat": lambda: any(self.home.glob("run/beat-schedule*")),
            }[name],
            fork_server=lambda: self._fork_server,
        )

    def _environment_of(self, name: str) -> Mapping[str, str]:
        """The environment of a program; the launcher, which starts user code, has no secret key."""
        environment = self.environment
        if name == "launcher":
            del environment["SECRET_KEY"]
            if self._settings == DEFAULT_SETTINGS:
                environment["DJANGO_SETTINGS_MODULE"] = "controlplane.settings.launcher"
        return environment

    def _command(self, name: str) -> Sequence[str]:
        if name == "web":
            return [
                *(sys.executable, "-m", "controlplane.serve"),
                *("--host", LOOPBACK, "--port", str(self._port), "--grace", "2"),
            ]
        celery = [sys.executable, "-m", "celery", "-A", "controlplane"]
        # On one machine a worker has no neighbours to gossip with or to wait for.
        alone = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        if name == "worker":
            queues = ["-Q", "coordination,storage"]
            return [*celery, "worker", "-n", "worker@weir", *queues, "-c", "2", *alone]
        if name == "deliveries":
            queue = ["-Q", "deliveries", "-P", "threads", "-c", "2"]
            return [*celery, "worker", "-n", "deliveries@weir", *queue, *alone]
        if name == "launcher":
            return [*celery, "worker", "-n", "launcher@weir", "-Q", "launch", "-P", "solo", *alone]
        return [*celery, "beat", "-s", str(self.home / "run" / "beat-schedule"), "--pidfile="]

    def _web_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:  # Not listening yet.
            return False

    def _celery_answers(self, node: str) -> Callable[[], bool]:
        """Whether the Celery worker ``node`` answers a ping."""

        def answers() -> bool:
            app = Celery(broker=self.redis.url, set_as_current=False)
            # A connection of its own: the pool's may be older than the last start of Redis.
            with app.connection_for_write() as connection:
                try:
                    connection.ensure_connection(max_retries=1, timeout=PING_TIMEOUT_S)
                    replies = app.control.ping(
                        destination=[node], timeout=PING_TIMEOUT_S, connection=connection
                    )
                except (OperationalError, *connection.connection_errors):  # Redis is away.
                    return False
            return bool(replies)

        return answers
