"""What the coordinator's commands become: rows, commands in the outbox, answers to who asked."""

import pytest

from checkpoints import services
from checkpoints.models import CoordinatorRow, GateAlignment, SubtaskAck
from controlplane.accounts.models import User
from jobs.models import Operation
from tests.checkpoints.line import Line

pytestmark = pytest.mark.django_db


def test_checkpoint_goes_through_its_rows(line: Line, operator: User) -> None:
    operation = services.request_checkpoint(operator, line.job_id)
    assert line.triggered() == [1]
    assert line.statuses() == {1: "pending"}
    line.complete(1)
    assert line.statuses() == {1: "completed"}
    row = line.checkpoint(1)
    assert (row.acknowledged_count, row.subtask_count) == (6, 6)
    assert row.acks.count() == 6
    operation.refresh_from_db()
    assert operation.status == "succeeded"
    assert operation.result["checkpoint"] == 1
