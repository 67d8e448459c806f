"""The table of a running job in a notebook: a real job, under a shell that records outputs."""

import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from weir.config import CheckpointConfig, JobConfig
from weir.datastream import JobExecutionResult, StreamExecutionEnvironment
from weir.datastream.execution import ExecutionOptions, overriding
from weir.errors import JobFailedError
from weir.graph.logical import JobGraph, Operator
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, SubtaskId
from weir.jobmaster.history import JobHistory
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    CheckpointTriggered,
    JobChanged,
    JobEvent,
    Notice,
)
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import SubtaskMetrics
from weir.spark.notebook_view import PERIOD_NS, NotebookView
from weir.spark.submit import IN_PROCESS


@dataclass
class Shell:
    """IPython's shell as Weir uses it: the number of the cell, and the outputs published."""

    kernel: object | None = None
    execution_count: int = 7
    custom_exceptions: tuple[type, ...] = ()
    published: list[dict[str, Any]] = field(default_factory=list)

    @property
    def display_pub(self) -> Any:
        return SimpleNamespace(publish=lambda **output: self.published.append(output))

    @property
    def tables(self) -> list[str]:
        """The tables shown, in order."""
        return [output["data"]["text/html"] for output in self.published]

    def set_custom_exc(self, kinds: object, handler: object) -> None:
        """As IPython's; nothing is raised to this shell."""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The shell of a notebook's kernel, which runs cell 7."""
    shell = Shell(kernel=object())
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return shell


def run(function: Any = str) -> JobExecutionResult:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.from_collection([1, 0]).map(function).name("Turn").print()
    with overriding(ExecutionOptions(master=IN_PROCESS)):
        return env.execute("a <job>")


def test_one_table_changes_in_place_and_becomes_the_results(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weir")
    result = run()
    assert len(shell.published) > 2
    assert len({output["transient"]["display_id"] for output in shell.published}) == 1
    assert [output["update"] for output in shell.published[:3]] == [False, True, True]
    assert any("<th>status</th><td>running</td>" in table for table in shell.tables)
    assert shell.tables[-1] == result._repr_html_()
    assert [r for r in caplog.records if r.name == "weir.spark.job_log"] == []


def test_the_result_is_not_shown_twice_in_its_cell(shell: Shell) -> None:
    result = run()
    shown = len(shell.published)
    result._ipython_display_()
    assert len(shell.published) == shown
    shell.execution_count += 1
    with pytest.raises(NotImplementedError):  # IPython takes its table then.
        result._ipython_display_()


def test_a_job_that_failed_leaves_its_cause_in_the_table(shell: Shell) -> None:
    with pytest.raises(JobFailedError):
        run(lambda n: 1 // n)
    assert "<caption>a &lt;job&gt;</caption>" in shell.tables[-1]
    assert "<th>status</th><td>failed: &#x27;Turn&#x27;" in shell.tables[-1]
    assert "ZeroDivisionError" in shell.tables[-1]


def test_ipython_in_a_terminal_has_the_log(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weir")
    shell.kernel = None
    result = run()
    assert shell.published == []
    assert any(r.name == "weir.spark.job_log" for r in caplog.records)
    with pytest.raises(NotImplementedError):
        result._ipython_display_()


def test_the_table_tells_attempt_checkpoint_records_and_notices(shell: Shell) -> None:
    graph = JobGraph("Count", (Operator(OperatorId("a"), "A", 2, None, is_source=True),), ())
    config = JobConfig(checkpoints=CheckpointConfig(interval_ms=500, storage="/shared"))
    history, now = JobHistory(), [0]
    view = NotebookView(JobId("Count-1"), graph, config, history, lambda: now[0])

    def tell(*events: JobEvent) -> None:
        for event in events:
            history.on_event(event)
            view.on_event(event)

    tell(JobChanged(1, JobStatus.INITIALIZING))
    assert "<th>attempt</th><td>waits for its slots</td>" in shell.tables[-1]
    assert "<th>last checkpoint</th><td>none yet</td>" in shell.tables[-1]
    attempt = AttemptNumber(2)
    tell(
        AttemptStarted(2, attempt, CheckpointId(3)),
        CheckpointTriggered(3, CheckpointId(4), CheckpointKind.CHECKPOINT, ()),
        CheckpointSettled(4, CheckpointId(4), 38),
        *(
            SubtaskMetrics(attempt, SubtaskId(OperatorId("a"), i), 600, 600, 0, 0, 0, 0, 0, None)
            for i in range(2)
        ),
        Notice(5, "old state <stays>"),
    )
    assert len(shell.published) == 1  # No status has changed, and the table is fresh.
    now[0] = PERIOD_NS
    tell(Notice(6, "another"))
    assert len(shell.published) == 2
    (table,) = shell.tables[1:]
    assert "<th>attempt</th><td>2, from checkpoint 3</td>" in table
    assert "<th>last checkpoint</th><td>4 at " in table
    assert ", in 38 ms</td>" in table
    assert "<td>1,200 from sources in this attempt</td>" in table
    assert "<td>old state &lt;stays&gt;</td>" in table
