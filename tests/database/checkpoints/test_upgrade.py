"""An upgrade of the control plane while a driver of the version before runs its job.

The driver goes on writing the messages of its version, each of which has the fields that were
recorded of that version. Meanwhile the control plane is stopped, and its database is taken from the
schema of the version before to this one's by the migrations, rows and all.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from checkpoints import driver_protocol
from checkpoints.models import Checkpoint
from controlplane.audit import chain
from controlplane.base.ticks import Budget
from controlplane.retention import rows
from jobs.models import Attempt, Job
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.jobs import builders as jobs
from weir.ids import CheckpointId
from weir.protocol.driver_messages import DriverCommand, EventBatch
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import (
    CheckpointCompleted,
    CheckpointRequested,
    ManifestWritten,
    WriteManifest,
)
from weir.wire import batches

pytestmark = [pytest.mark.whole, pytest.mark.django_db(transaction=True)]

BEFORE = 1  # The version of the messages.
RECORDED = Path(__file__).parents[2] / "unit" / "wire"
# The schema that the version before left.
SCHEMA_BEFORE = [
    ("audit", "0002_refusals_counted"),
    ("checkpoints", "0003_attempts_and_failures"),
    ("jobs", "0004_set_aside_steps"),
    ("retention", None),
]


def recorded_fields(what: str) -> dict[str, set[str]]:
    """The fields of each message as the version before wrote it."""
    recorded = json.loads((RECORDED / f"recorded_version_1_{what}.json").read_bytes())
    if what == "events":
        messages = recorded["events"]
    else:
        messages = [numbered["command"] for numbered in recorded["commands"]]
    return {message["type"]: set(message) for message in messages}


EVENTS, COMMANDS = recorded_fields("events"), recorded_fields("commands")


class OldLine(Line):
    """The line of a driver of the version before."""

    def send(self, batch: EventBatch) -> int:
        body = batches.encode_batch(
            batch.first_number, map(batches.encode_event, batch.events), batch.away_ms, BEFORE
        )
        for event in json.loads(body)["events"]:
            assert set(event) <= EVENTS[event["type"]], "a field that the version before had not"
        answer = driver_protocol.receive(self.job_id, self.token, body, BEFORE)
        return int(batches.decode_applied(answer, BEFORE).up_to)

    def poll(self) -> list[DriverCommand]:
        batch = driver_protocol.take_commands(self.job_id, self.token, self.taken)
        written = batches.encode_commands(batch)
        for numbered in json.loads(written)["commands"]:
            command = numbered["command"]
            assert set(command) <= COMMANDS[command["type"]], "a field that it would refuse"
        read = batches.decode_commands(written, BEFORE)
        if read.commands:
            self.taken = read.commands[-1].number
        return [numbered.command for numbered in read.commands]


@pytest.fixture
def schema() -> Iterator[None]:
    """The newest schema again, also after a test that failed in between."""
    yield
    migrate()


def migrate(targets: list[tuple[str, str | None]] | None = None) -> None:
    """Take the database to a schema; None: the newest."""
    executor = MigrationExecutor(connection)
    executor.migrate(targets or executor.loader.graph.leaf_nodes())


def upgrade() -> None:
    """The database as the version before left it, and the migrations of this one."""
    migrate(SCHEMA_BEFORE)
    with connection.cursor() as cursor:
        assert "retention_tally" not in connection.introspection.table_names(cursor)
    migrate()


def test_a_job_goes_on_through_the_upgrade_of_its_control_plane(schema: None) -> None:
    line = OldLine.running()
    line.post(CheckpointRequested("before"))
    line.complete(1)
    line.post(CheckpointRequested("during"))
    assert line.triggered() == [1, 2]
    first, *rest = protocol.acks(2)
    line.post(first)
    upgrade()
    assert line.send(line.batches[-1]) == line.number - 1  # Its answer was lost with the process.
    line.post(*rest, away_ms=5_000)
    writes = [command for command in line.poll() if isinstance(command, WriteManifest)]
    assert [command.checkpoint.checkpoint_id for command in writes] == [2]
    line.post(ManifestWritten(CheckpointId(2)))
    assert line.statuses() == {1: "completed", 2: "completed"}
    done = [c.checkpoint_id for c in line.poll() if isinstance(c, CheckpointCompleted)]
    assert done == [2]
    assert Attempt.objects.get(job=line.job_id).ended_at is None  # Not even restarted.
    line.post(CheckpointRequested("after"))
    line.complete(3)
    line.post(jobs.changed(JobStatus.FINISHED))
    assert Job.objects.get().status == JobStatus.FINISHED


def test_what_the_version_before_wrote_is_sealed_and_under_retention(schema: None) -> None:
    line = OldLine.running()
    line.post(CheckpointRequested("before"))
    line.complete(1)
    upgrade()
    assert chain.seal(Budget(60.0)) > 0
    assert chain.verify().problems == []
    assert rows.look(seconds=60.0) == 0
    assert Checkpoint.objects.count() == 1
