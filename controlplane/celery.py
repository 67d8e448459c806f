"""The Celery application: four queues, and a beat that ticks every second.

A due time is a row; beat only makes a worker look. Two beats do no harm, and the next tick makes up
for a countdown that was lost with a killed worker.
"""

import os
from contextlib import ExitStack
from logging.config import dictConfig
from typing import Any

from celery import Celery, Task, signals
from django.conf import settings
from kombu import Queue

from controlplane.base import logs
from controlplane.base.schedules import SteadySchedule

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.dev")

COORDINATION, STORAGE, WEBHOOKS, LAUNCH = "coordination", "storage", "webhooks", "launch"
TICK_S = 1.0
SWEEP_S = 30.0

app = Celery("weir")
app.set_default()  # For every thread: else only this one knows ``celery.current_app``.
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.task_queues = [Queue(name) for name in (COORDINATION, STORAGE, WEBHOOKS, LAUNCH)]
app.conf.task_routes = {
    "jobs.tasks.launch_*": {"queue": LAUNCH},
    "checkpoints.tasks.storage_*": {"queue": STORAGE},
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
}
app.autodiscover_tasks()

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
