"""The Celery application: four queues, and a beat that ticks every second.

A due time is a row; beat only makes somebody look. Two beats do no harm, and a countdown that a
killed worker took with it is made up for by the next tick.
"""

import os

from celery import Celery
from kombu import Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.dev")

COORDINATION, STORAGE, WEBHOOKS, LAUNCH = "coordination", "storage", "webhooks", "launch"
TICK_S = 1.0
SWEEP_S = 30.0

app = Celery("weir")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.task_queues = [Queue(name) for name in (COORDINATION, STORAGE, WEBHOOKS, LAUNCH)]
app.conf.task_routes = {
    "jobs.tasks.launch_*": {"queue": LAUNCH},
    "checkpoints.tasks.storage_*": {"queue": STORAGE},
}
# A tick that nobody took within its second is not worth running: the next one does its work.
_expires = {"expires": 5 * TICK_S}
app.conf.beat_schedule = {
    "jobs": {"task": "jobs.tasks.tick", "schedule": TICK_S, "options": _expires},
    "drivers": {"task": "jobs.tasks.launch_tick", "schedule": TICK_S, "options": _expires},
    "checkpoints": {"task": "checkpoints.tasks.tick", "schedule": TICK_S, "options": _expires},
    "storage": {"task": "checkpoints.tasks.storage_tick", "schedule": TICK_S, "options": _expires},
    "sweep": {"task": "jobs.tasks.sweep", "schedule": SWEEP_S, "options": _expires},
    "checkpoint-sweep": {
        "task": "checkpoints.tasks.sweep",
        "schedule": SWEEP_S,
        "options": _expires,
    },
}
app.autodiscover_tasks()
