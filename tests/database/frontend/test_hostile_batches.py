"""Batches of a driver with a valid token that means no good, made from the message types.

Each is applied or refused as a whole, changes no other job, and leaves every page in order.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.apps import apps
from django.db import transaction
from django.db.models import Model
from django.test import Client
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from pytest_django.fixtures import Settings

from checkpoints import driver_protocol
from checkpoints.operations import savepoints
from controlplane.accounts.models import Role, digest_of
from controlplane.base.errors import DriverFenced, Invalid
from controlplane.embedded.redis import Redis
from jobs.models import Driver, Job
from tests import factories
from tests.database.frontend import flights
from tests.database.frontend.all_pages import assert_every_page_opens, job_on_every_page
from tests.seeds import share
from tests.unit.wire.fitting import Special, fitting
from weir.ids import AttemptNumber, CheckpointId, OperatorId, StateHandle, SubtaskId
from weir.protocol.driver_messages import DriverLost, JobPlanned, PipelineFailed
from weir.protocol.events import JobChanged
from weir.protocol.messages import (
    Acknowledged,
    CheckpointingStopped,
    GateAlignment,
    JobEnded,
    OperatorAck,
    SnapshotMetrics,
)
from weir.wire import batches
from weir.wire.batches import EVENT_CLASSES

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("plain_templates"),
    pytest.mark.whole,
]

TOKEN = "the token of a hostile driver"
BATCHES = 500  # Of one part; two thousand together.
PARTS = share(2_000, block=BATCHES) // BATCHES

UIDS = [OperatorId(uid) for uid in factories.CHAINS]
KNOWN: Special = (
    (OperatorId, st.sampled_from(UIDS) | fitting(OperatorId)),
    (
        AttemptNumber,
        st.sampled_from([AttemptNumber(n) for n in (1, 1, 2)]) | fitting(AttemptNumber),
    ),
    (CheckpointId, st.sampled_from([CheckpointId(n) for n in range(5)]) | fitting(CheckpointId)),
    (
        SubtaskId,
        st.builds(SubtaskId, st.sampled_from(UIDS), st.integers(0, 1)) | fitting(SubtaskId),
    ),
)
WITHOUT_GATES: Special = (*KNOWN, (GateAlignment, st.just(GateAlignment(0, (), (), (), ()))))
WILD = (
    -1, 10**400, 10**18, -(10**18), 2**63, 1.5, 1e308, "", "x" * 70_000, "\0", "\ud800", "<script>",
    None, True, [], {}, [[]], {"type": "Tick"}, "2026-01-01", "failed",
)  # fmt: skip


PARTS_OF = {
    head: tuple(OperatorId(uid) for uid, _, chain, *_ in factories.FLIGHTS if chain == head)
    for head in factories.CHAINS
}


@st.composite
def gates(draw: st.DrawFn) -> tuple[GateAlignment, ...]:
    """Gates whose arrays have an entry per channel, as those of a driver's own classes do."""
    made = []
    for index in range(draw(st.integers(0, 2))):
        count = draw(st.integers(0, 3))
        gate = draw(fitting(GateAlignment, KNOWN))
        arrays = {
            name: (getattr(gate, name) * count or (filler,) * count)[:count]
            for name, filler in (
                ("upstream", "x"),
                ("arrived_ms", None),
                ("blocked_ms", -1.0),
                ("bytes_during", 0),
            )
        }
        # Empty where nothing is persisted of any channel.
        arrays["in_flight"] = (gate.in_flight * count or (0,) * count)[
            : draw(st.just(count) | st.just(0))
        ]
        made.append(replace(gate, gate_index=index, **arrays))
    return tuple(made)


@st.composite
def acknowledged(draw: st.DrawFn) -> Acknowledged:
    """An acknowledgement of the checkpoint under way that its chain might send."""
    chain = SubtaskId(draw(st.sampled_from(UIDS)), draw(st.integers(0, factories.PARALLELISM - 1)))
    parts = tuple(
        OperatorAck(
            SubtaskId(uid, chain.index),
            draw(fitting(tuple[StateHandle, ...], KNOWN)),
            replace(draw(fitting(SnapshotMetrics, WITHOUT_GATES)), gates=draw(gates())),
        )
        for uid in PARTS_OF[chain.operator]
    )
    return Acknowledged(AttemptNumber(1), CheckpointId(2), chain, parts)


# Ends come, but not so often that little else does.
ENDS = (JobChanged, JobEnded, DriverLost, PipelineFailed, CheckpointingStopped, JobPlanned)
OTHERS = tuple(cls for cls in EVENT_CLASSES if cls not in ENDS)
events = st.integers(0, 19).flatmap(
    lambda n: (
        acknowledged()
        if n < 6
        else st.sampled_from(ENDS if n == 6 else OTHERS).flatmap(lambda cls: fitting(cls, KNOWN))
    )
)


@st.composite
def hostile(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The events of a batch as JSON; in every third one a value is replaced by a wild one."""
    sent = [
        json.loads(batches.encode_event(e)) for e in draw(st.lists(events, min_size=1, max_size=4))
    ]
    if draw(st.integers(0, 2)) == 0:
        random, wild = Random(draw(st.integers(0, 2**32))), draw(st.sampled_from(WILD))
        places = list(_places(sent))
        if places:
            random.choice(places)(wild)
    return sent


def _places(value: Any) -> Iterator[Callable[[Any], None]]:
    """Functions that replace one value each, anywhere in JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield lambda wild, key=key: value.__setitem__(key, wild)  # type: ignore[misc]
        if isinstance(inner, dict | list):
            yield from _places(inner)


@pytest.fixture
def hurt(settings: Settings, redis: Redis, tmp_path: Path) -> Job:
    """The job of the hostile driver, with something on every page."""
    job = job_on_every_page(settings, tmp_path)
    Driver.objects.filter(job=job).update(token_digest=digest_of(TOKEN))
    return job


@pytest.fixture
def other() -> Job:
    """A job of others, with rows in every table that a driver can reach."""
    job = flights.running("untouched")
    savepoints.request_checkpoint(None, job.pk)
    flights.complete(job, 1)
    return job


def rows_of_others(job: Job) -> dict[str, list[Any]]:
    """All rows of the control plane's tables that do not belong to a job."""
    kept = {}
    for model in (*apps.get_app_config("jobs").get_models(), *_of_checkpoints()):
        kept[model.__name__] = [
            row for row in model._default_manager.order_by("pk").values() if not _is_of(row, job)
        ]
    return kept


def _of_checkpoints() -> Iterator[type[Model]]:
    yield from apps.get_app_config("checkpoints").get_models()


def _is_of(row: dict[str, Any], job: Job) -> bool:
    if "checkpoint_id" in row and "job_id" not in row:
        return row["checkpoint_id"] in set(job.checkpoints.values_list("pk", flat=True))
    if "attempt_id" in row and "job_id" not in row:
        return row["attempt_id"] in set(job.attempts.values_list("pk", flat=True))
    return job.pk in (row.get("job_id"), row.get("id"))


class Attack:
    """Batches one after another; at the end all pages are opened, and the job is as it was."""

    def __init__(self, hurt: Job, *, is_first: bool) -> None:
        self.hurt = hurt
        self.admin = Client(raise_request_exception=False)
        self.admin.force_login(factories.user(Role.ADMIN))
        if is_first:  # All attacks begin with the same rows.
            assert_every_page_opens(self.admin, hurt)
        self.others = rows_of_others(hurt)
        self.start = transaction.savepoint()
        self.sent: list[bytes] = []
        self.counts: Counter[str] = Counter()  # Batches by what became of them.
        self.kinds: Counter[str] = Counter()  # Applied events by their type.

    def send(self, batch: list[dict[str, Any]]) -> None:
        """Send the next batch, as the driver that it still is or was."""
        first = Driver.objects.get(job=self.hurt).applied_up_to + 1
        body = json.dumps({"first_number": first, "events": batch}).encode()
        self.sent.append(body)
        try:
            driver_protocol.receive(self.hurt.pk, TOKEN, body, 1 + len(self.sent) % 2)
        except Invalid:
            self.counts["refused"] += 1
        except DriverFenced:  # An earlier batch reported its end.
            self.counts["fenced"] += 1
            self.undo()
        else:
            self.counts["applied"] += 1
            self.kinds.update(str(event["type"]) for event in batch)

    def look(self) -> None:
        """Open all pages, and undo all batches."""
        assert_every_page_opens(self.admin, self.hurt)
        self.undo()

    def undo(self) -> None:
        """Make the job what it was at first; no other job has changed."""
        assert rows_of_others(self.hurt) == self.others
        transaction.savepoint_rollback(self.start)
        self.start = transaction.savepoint()
        self.sent.clear()


@pytest.mark.parametrize("part", range(PARTS))
def test_hostile_batches_are_refused_or_applied_and_no_page_breaks(
    hurt: Job, other: Job, part: int
) -> None:
    attack = Attack(hurt, is_first=part == 0)

    @seed(part)
    @settings(
        max_examples=BATCHES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile())
    def send(batch: list[dict[str, Any]]) -> None:
        try:
            attack.send(batch)
        except Exception:
            print("after", *attack.sent, sep="\n")  # The state is that of all of them.
            raise

    send()
    attack.look()
    counts, kinds = attack.counts, attack.kinds
    assert counts["applied"] > BATCHES // 5, counts
    assert counts["refused"] > BATCHES // 10, counts
    assert kinds["Acknowledged"] > 20, kinds
    assert len(kinds) > len(EVENT_CLASSES) // 2, kinds
