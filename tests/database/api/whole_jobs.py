"""Jobs for the API's tests: a source, a keyed operator and a sink, and one with every part."""

from typing import Any

from controlplane.accounts.models import User
from controlplane.base import clock
from jobs.models import DriverStatus, Job
from tests import factories

OPERATORS = (
    ("source", "source", "source", True, False, False),
    ("totals", "totals", "totals", False, False, True),
    ("sink", "sink", "totals", False, True, False),
)
EDGES = (("source", "totals", "hash"), ("totals", "sink", "forward"))


def planned(of: Job) -> None:
    """The graph and its subtasks, of two chains."""
    factories.graph(of, operators=OPERATORS, edges=EDGES, max_parallelism=128)
    factories.subtasks(of, chains=("source", "totals"), metrics={"records_in": 10})


def everything(by: User, **columns: Any) -> Job:
    """A job with something of each kind."""
    made = factories.job(created_by=by, **columns)
    factories.coordinator(made)
    factories.driver(made, 1, DriverStatus.LOST, cause="killed", ended_at=clock.now())
    factories.attempt(factories.driver(made, 2), workers=2)
    planned(made)
    factories.exception(made, "the driver was killed", "driver", driver_number=1)
    first = factories.checkpoint(made, 1)
    second = factories.checkpoint(made, 2, parent=first)
    for index in range(2):
        factories.acknowledge(second, "totals", index)
        factories.gate_alignment(
            second, "totals", index, [0.0, 4.0, None], upstream="source", bytes_during=[0, 0, 0]
        )
    factories.checkpoint(made, 3, status="failed", parent=second)
    factories.savepoint(made, number=4, by=by, labels={"release": "1"})
    factories.operation(made, by, status="running")
    factories.upload(made.pk.encode(), by)
    factories.audit_entry(target=f"job/{made.pk}")
    return made
