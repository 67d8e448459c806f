"""The Celery application: four queues, and a beat that ticks every second.

A due time is a row; beat only makes a worker look. Two beats do no harm, and the next tick makes up
for a countdown that was lost with a killed worker.
"""

import os
import sys
from contextlib import ExitStack
from logging.config import dictConfig
from pathlib import Path
from typing import Any

from celery import Celery, Task, bootsteps, signals
from celery.worker import state as worker_state
from django.conf import settings
from django.db import close_old_connections
from kombu.entity import Queue

from controlplane.base import logs, watchdog
from controlplane.base.hardening import make_undumpable
from controlplane.base.schedules import SteadySchedule

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.dev")
# Django's checks load every page, which takes a worker as long as all the rest of its start;
# ``weir_prepare`` runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

COORDINATION, STORAGE, DELIVERIES, LAUNCH = "coordination", "storage", "deliveries", "launch"
TICK_S = 1.0
SWEEP_S = 30.0
ALERTS_S = 5.0
SAMPLES_S = 10.0

# Celery's part for Django puts the working directory first on the path, where anything may have the
# name of a package. The directory that belongs there is this package's own.
_path = [str(Path(__file__).resolve().parent.parent), *sys.path]
app = Celery("weir")
sys.path[:] = _path
app.set_default()  # For every thread: else only this one knows ``celery.current_app``.
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.task_queues = [Queue(name) for name in (COORDINATION, STORAGE, DELIVERIES, LAUNCH)]
app.conf.task_routes = {
    "jobs.tasks.launch_*": {"queue": LAUNCH},
    "checkpoints.tasks.storage_*": {"queue": STORAGE},
    "controlplane.deliveries.tasks.*": {"queue": DELIVERIES},
    "controlplane.retention.tasks.storage_*": {"queue": STORAGE},
    "controlplane.retention.tasks.launch_*": {"queue": LAUNCH},
}
# A tick that no worker took in time is dropped: the next one does its work.
_expires = {"expires": 5 * TICK_S}
app.conf.beat_schedule = {
    "jobs": {"task": "jobs.tasks.tick", "schedule": SteadySchedule(TICK_S), "options": _expires},
    "drivers": {
        "task": "jobs.tasks.launch_tick",
        "schedule": SteadySchedule(TICK_S),
        "options": _expires,
    },
    "checkpoints": {
        "task": "checkpoints.tasks.tick",
        "schedule": SteadySchedule(TICK_S),
        "options": _expires,
    },
    "storage": {
        "task": "checkpoints.tasks.storage_tick",
        "schedule": SteadySchedule(TICK_S),
        "options": _expires,
    },
    "sweep": {"task": "jobs.tasks.sweep", "schedule": SteadySchedule(SWEEP_S), "options": _expires},
    "checkpoint-sweep": {
        "task": "checkpoints.tasks.sweep",
        "schedule": SteadySchedule(SWEEP_S),
        "options": _expires,
    },
    "samples": {
        "task": "checkpoints.tasks.sample",
        "schedule": SteadySchedule(SAMPLES_S),
        "options": _expires,
    },
    "deliveries": {
        "task": "controlplane.deliveries.tasks.deliver",
        "schedule": SteadySchedule(TICK_S),
        "options": _expires,
    },
    "delivery-sweep": {
        "task": "controlplane.deliveries.tasks.sweep",
        "schedule": SteadySchedule(SWEEP_S),
        "options": _expires,
    },
    "alerts": {
        "task": "controlplane.alerts.tasks.evaluate",
        "schedule": SteadySchedule(ALERTS_S),
        "options": _expires,
    },
    "retention": {
        "task": "controlplane.retention.tasks.storage_retention",
        "schedule": SteadySchedule(SWEEP_S),
        "options": _expires,
    },
    "driver-files": {
        "task": "controlplane.retention.tasks.launch_retention",
        "schedule": SteadySchedule(SWEEP_S),
        "options": _expires,
    },
}
# Celery's part for Django would close the database's connection before and after each task.
app.conf["CELERY_DB_REUSE_MAX"] = sys.maxsize
app.autodiscover_tasks()

# Connections -------------------------------------------------------------------------------------


@signals.task_prerun.connect
@signals.task_postrun.connect
def _close_broken_connections(task: Task, **_: Any) -> None:
    """Close the connection of this thread if it broke, and have the next query check the rest.

    One that broke while idle is replaced, and one that broke in the task is not kept.
    """
    if not task.request.is_eager:  # It runs in its caller's transaction.
        close_old_connections()


# Processes ---------------------------------------------------------------------------------------

POOL_ROUND = "pool of worker processes"
POOL_PATIENCE = 10  # Times that of a loop: a task that deletes checkpoints takes minutes.


@signals.celeryd_init.connect
@signals.beat_init.connect
def _protect(**_: Any) -> None:
    """Keep environment and memory of workers and beat from other processes of their user."""
    make_undumpable()


@signals.beat_init.connect
def _watch_beat(**_: Any) -> None:
    watchdog.start(settings.WEIR_STUCK_AFTER_S)


@signals.worker_init.connect
def _share_places(sender: Any, **_: Any) -> None:
    from controlplane.base import ticks  # Needs the settings, as below.

    if isinstance(sender.concurrency, int):  # `auto` is resolved later: it has one place.
        ticks.places.share(sender.concurrency)


class WatchedLoop(bootsteps.StartStopStep):
    """The part of a worker that tells the watchdog that its event loop runs.

    Stopped while the worker connects to the broker again, which takes as long as it takes.
    """

    requires = {"celery.worker.consumer.tasks:Tasks"}

    def __init__(self, c: Any, **options: Any) -> None:
        super().__init__(c, **options)
        self._entry: Any = None
        self._held: frozenset[str] = frozenset()

    def start(self, c: Any) -> None:
        """Begin to watch: the loop runs from now on."""
        watchdog.start(settings.WEIR_STUCK_AFTER_S)
        self._come_round(c)
        self._entry = c.timer.call_repeatedly(watchdog.LOOK_S, self._come_round, (c,))

    def stop(self, c: Any) -> None:
        """Watch no more. Idempotent."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.cancel()
        watchdog.forget(watchdog.LOOP)
        watchdog.forget(POOL_ROUND)

    def _come_round(self, c: Any) -> None:
        watchdog.came_round()
        held = frozenset(request.id for request in worker_state.active_requests)
        # Every process is held by the task that held it at the last look: none has come round.
        if len(held) < (c.pool.num_processes or 1) or held != self._held:
            watchdog.came_round(POOL_ROUND, times=POOL_PATIENCE)
        self._held = held


app.steps["consumer"].add(WatchedLoop)

# Logs --------------------------------------------------------------------------------------------

REQUEST_ID_HEADER = "weir_request_id"
_contexts: dict[str, ExitStack] = {}  # By task id, while the task runs.


@signals.setup_logging.connect
def _log_like_the_rest(**_: Any) -> None:
    """Configure the logs of workers and beat by ``settings.LOGGING``, not by Celery's defaults."""
    dictConfig(settings.LOGGING)


@signals.before_task_publish.connect
def _pass_request_id_on(headers: dict[str, Any], **_: Any) -> None:
    if request_id := logs.current().get("request_id"):
        headers[REQUEST_ID_HEADER] = request_id


@signals.task_prerun.connect
def _enter_context(task_id: str, task: Task, **_: Any) -> None:
    about: dict[str, Any] = {"celery_task": task.name, "celery_task_id": task_id}
    if request_id := task.request.get(REQUEST_ID_HEADER):
        about["request_id"] = request_id
    context = _contexts[task_id] = ExitStack()
    context.enter_context(logs.about(**about))


@signals.task_postrun.connect
def _leave_context(task_id: str, **_: Any) -> None:
    if context := _contexts.pop(task_id, None):
        context.close()


@signals.task_success.connect
def _note_tick(sender: Task, **_: Any) -> None:
    from controlplane.base import ticks  # Needs the settings, which may not be there at import.

    if sender.name in ticks.TASKS:
        ticks.note(sender.name)
