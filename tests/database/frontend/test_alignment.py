"""The channels read of a checkpoint, against all of them put in order here."""

import random

import pytest

from checkpoints.models import Checkpoint
from checkpoints.verdict.facts import Gate
from frontend.base import alignment
from frontend.job import queries
from jobs.models import Operator
from tests import factories
from tests.database.frontend import flights

pytestmark = pytest.mark.django_db


@pytest.fixture
def checkpoint(db: None) -> Checkpoint:
    """Two inputs of one operator, one of another; ties, and channels whose senders had ended."""
    job = flights.running()
    made = factories.checkpoint(job, 1)
    given = random.Random(7)
    arrivals = [None, 0.0, 3.0, 3.0, 40.0]
    for operator, number, width in (("totals", 0, 3), ("hourly", 0, 2), ("hourly", 1, 6)):
        for index in range(9):
            arrived = [given.choice(arrivals) for _ in range(width)]
            in_flight = [given.randrange(9_000) for _ in arrived] if index % 2 else None
            factories.gate_alignment(
                made, operator, index, arrived, gate=number, in_flight=in_flight
            )
    return made


def all_gates(of: Checkpoint) -> list[Gate]:
    """In the graph's order."""
    operators = Operator.objects.filter(job=of.job_id).order_by("position")
    position = {uid: at for at, uid in enumerate(operators.values_list("uid", flat=True))}
    gates = [
        Gate(
            row.operator,
            row.index,
            row.gate,
            row.upstream,
            row.arrived_ms,
            row.blocked_ms,
            row.bytes_during,
            row.in_flight or [],
        )
        for row in of.alignments.all()
    ]
    return sorted(
        gates, key=lambda one: (position.get(one.operator, 99), one.operator, one.index, one.gate)
    )


def lateness(arrived_ms: float | None) -> float:
    return -1.0 if arrived_ms is None else arrived_ms


def test_the_slowest_channels_are_those_of_all_gates(checkpoint: Checkpoint) -> None:
    every = [
        (one, at) for one in all_gates(checkpoint) for at in range(len(one.upstream))
    ]  # Ties stay in the graph's order.
    every.sort(key=lambda pair: -lateness(pair[0].arrived_ms[pair[1]]))
    for count in (1, 5, 20):
        aligned = queries.aligned(checkpoint, count)
        assert len(aligned.gates) == count
        channels = alignment.slowest(aligned, count)
        assert [(c.receiver.split()[0], c.sender, c.position) for c in channels] == [
            (f"{one.operator}-{one.index}", one.upstream[at], at) for one, at in every[:count]
        ]
        assert {c.receiver for c in channels if c.receiver.startswith("hourly")} == {
            f"hourly-{one.index} input {one.gate + 1}"
            for one, _ in every[:count]
            if one.operator == "hourly"
        }


def test_what_all_gates_come_to_is_known_however_few_are_read(checkpoint: Checkpoint) -> None:
    every = all_gates(checkpoint)
    for count in (1, 100):
        aligned = queries.aligned(checkpoint, count)
        assert (aligned.gate_count, aligned.channel_count, aligned.channels_max) == (27, 99, 6)
        assert aligned.blocked_ms == max(max(one.blocked_ms) for one in every)
    assert list(aligned.gates) == every


def test_a_checkpoint_without_channels_aligned_nothing(checkpoint: Checkpoint) -> None:
    checkpoint.alignments.all().delete()
    assert queries.aligned(checkpoint, 9) == queries.aligned(None, 9) == alignment.NOTHING_ALIGNED


def test_operators_that_the_graph_no_longer_has_come_last(checkpoint: Checkpoint) -> None:
    Operator.objects.filter(job=checkpoint.job_id, uid="hourly").delete()
    gates = queries.aligned(checkpoint, 100).gates
    assert list(gates) == all_gates(checkpoint)
    assert gates[-1].operator == "hourly"
