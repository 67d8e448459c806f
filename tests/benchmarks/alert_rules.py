"""The processor time of a round of the evaluator, with many rules over many jobs."""

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

from tests.benchmarks.report import Row, limit_row

if TYPE_CHECKING:
    from jobs.models import Job

RULES, JOBS = 1_000, 100
CHECKPOINTS = 60  # Of each job, from before.
QUIET_MAX_MS = 50.0
BUSY_MAX_MS = 1_000.0


def alert_rules(quick: bool) -> list[Row]:
    """Rules over jobs: a round when nothing changed, and one in which every job did."""
    import django

    django.setup()
    from django.core.management import call_command

    from tests.services import running_postgres, use_database

    rounds = 5 if quick else 20
    with running_postgres() as postgres:
        use_database(postgres.url)
        call_command("migrate", verbosity=0)
        from controlplane.alerts.evaluation import Evaluation
        from controlplane.alerts.models import Alert

        jobs = _fill()
        evaluation = Evaluation()
        evaluation.run()
        quiet_ms = median(_cpu_ms(evaluation.run) for _ in range(rounds))
        busy_ms = []
        for number in range(rounds):
            _change(jobs, CHECKPOINTS + 1 + number)
            busy_ms.append(_cpu_ms(evaluation.run))
        fired = Alert.objects.count()
        assert not fired, f"{fired} alerts fired: the rules are meant to hold off"
        baseline_ms = median(_cpu_ms(_ask_once) for _ in range(rounds))
    pairs = f"{RULES:,} rules over {JOBS} jobs, {RULES * JOBS:,} pairs"
    return [
        limit_row(
            "a round of the evaluator of rules, when nothing changed: processor time",
            "ms",
            quiet_ms,
            at_most=QUIET_MAX_MS,
            baseline=baseline_ms,
            against="one query of one row",
            note=pairs,
        ),
        limit_row(
            "the same, when every job completed a checkpoint and every subtask reported",
            "ms",
            median(busy_ms),
            at_most=BUSY_MAX_MS,
            baseline=quiet_ms,
            against="when nothing changed",
            note=pairs,
        ),
    ]


def _cpu_ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1_000


def _ask_once() -> object:
    from controlplane.alerts.models import Evaluator

    return Evaluator.objects.get()


def _fill() -> "list[Job]":
    """Jobs that run well, and rules of all kinds that none of them breaks."""
    from controlplane.alerts.kinds import KINDS
    from controlplane.alerts.models import Rule
    from controlplane.base import clock
    from jobs.models import JobEvent, JobEventKind
    from tests import factories

    Rule.objects.all().delete()
    kinds = list(KINDS)
    for number in range(RULES):
        kind = kinds[number % len(kinds)]
        parameters: dict[str, float] = {}
        if kind == "checkpoint_duration":
            parameters = {"seconds": 60 + number}
        elif kind == "checkpoint_alignment":
            parameters = {"share": 0.9}
        elif kind == "event_time_lag":
            parameters = {"seconds": 3_600 + number}
        factories.rule(kind, parameters=dict(parameters), name=f"rule {number}")
    jobs = []
    now = clock.now()
    for number in range(JOBS):
        job = factories.job(f"flights-{number}")
        factories.graph(job)
        factories.attempt(factories.driver(job))
        _report(job, 0.2)
        JobEvent.objects.bulk_create(
            JobEvent(
                job=job,
                kind=JobEventKind.CHECKPOINT_COMPLETED,
                at=now - timedelta(seconds=CHECKPOINTS - at),
                planned=False,
                facts=_facts(at + 1),
            )
            for at in range(CHECKPOINTS)
        )
        jobs.append(job)
    return jobs


def _facts(number: int) -> dict[str, object]:
    return {
        "checkpoint": number,
        "kind": "checkpoint",
        "duration_ms": 900,
        "alignment_ms": 40,
        "state_bytes": 1_000_000,
    }


def _report(job: "Job", busy: float) -> None:
    from controlplane.base import clock
    from tests import factories

    now = clock.now()
    factories.subtasks(
        job,
        rates={"busy": busy, "idle": 1 - busy, "back_pressured": 0.0},
        metrics={"watermark_ms": clock.to_ms(now)},
        updated_at=now,
    )


def _change(jobs: "list[Job]", number: int) -> None:
    from controlplane.base import clock
    from jobs.models import JobEvent, JobEventKind, Subtask

    now = clock.now()
    Subtask.objects.update(
        rates={"busy": number / 1_000, "idle": 0.5, "back_pressured": 0.1},
        metrics={"watermark_ms": clock.to_ms(now)},
        updated_at=now,
    )
    JobEvent.objects.bulk_create(
        JobEvent(
            job=job,
            kind=JobEventKind.CHECKPOINT_COMPLETED,
            at=now,
            planned=False,
            facts=_facts(number),
        )
        for job in jobs
    )
