"""A driver that ``spark-submit`` starts for a control plane: what it says, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.process.managed.control_plane import JOB, TOKEN, StandIn, control_plane
from tests.spark import pipeline
from tests.spark.harness import (
    SESSION,
    Count,
    count,
    processes_of,
    rows_of,
    wait_until_gone,
    wrong_numbers,
)
from tests.waiting import wait_until
from weir.protocol.driver_messages import CancelJob, DriverLost, JobPlanned, PipelineFailed
from weir.protocol.events import AttemptStarted, JobChanged, Recovered, WorkerStarted
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.messages import (
    Acknowledged,
    CheckpointGivenUp,
    CheckpointRequested,
    JobEnded,
    SubtaskMetrics,
    TriggerCheckpoint,
)
from weir.spark import driver as production

ALONE_MAX_S = 300.0  # A driver that a killed run of the tests leaves behind ends by itself then.
START_S = 240.0  # A JVM, Spark, the slots, the first checkpoint; on a busy machine.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)
SPARK_HOME = _find_spark_home()


@dataclass(frozen=True, slots=True)
class Submitted:
    """``spark-submit`` with the driver below it."""

    jvm: "subprocess.Popen[str]"
    session: str
    log: Path

    @property
    def driver(self) -> psutil.Process:
        """The Python process."""
        (interpreter,) = [
            process
            for process in processes_of(self.session)
            if production.__file__ in _command(process)[1:2]
        ]
        return interpreter

    def end(self, timeout_s: float = 60.0) -> int:
        """Wait for its exit code."""
        try:
            return self.jvm.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.tail) from None

    @property
    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-4_000:]

    def all_gone(self) -> None:
        wait_until_gone(lambda: processes_of(self.session))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log of the driver."""
        written = self.log.read_text().splitlines()
        return [json.loads(line) for line in written if line.startswith('{"at"')]


def _command(process: psutil.Process) -> list[str]:
    try:
        command: list[str] = process.cmdline()
        return command
    except psutil.Error:
        return []


@pytest.fixture
def control() -> Iterator[StandIn]:
    with control_plane() as control:
        yield control


@contextmanager
def submitted(
    session: str,
    control: StandIn,
    root: Path,
    target: str,
    *,
    alone_max_s: float = ALONE_MAX_S,
    **options: Any,
) -> Iterator[Submitted]:
    """A driver that was just started; its processes left in the end are killed."""
    own = f"{session}/{uuid.uuid4().hex}"
    file = root / "job.json"
    told = {
        "version": 1,
        "gateway": f"http://127.0.0.1:{control.port}",
        "allow_plain_http": False,
        "job_id": JOB,
        "driver": 1,
        "token": TOKEN,
        "alone_max_s": alone_max_s,
        "pipeline": {"kind": "script", "target": target},
        "options": {"storage": str(root / "checkpoints"), **options},
    }
    file.touch(0o600)
    file.write_text(json.dumps(told))
    environ = {
        **os.environ,
        SESSION: own,
        "SPARK_HOME": SPARK_HOME,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.getcwd(),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [f"{SPARK_HOME}/bin/spark-submit", "--master", "local[2]"]
    command += [production.__file__, str(file)]
    log = root / "driver.log"
    with log.open("a") as output:
        jvm = subprocess.Popen(command, env=environ, stdout=output, stderr=output, text=True)
    run = Submitted(jvm, own, log)
    try:
        yield run
    finally:
        jvm.kill()
        jvm.wait()
        for process in processes_of(own):
            process.kill()


def arguments(root: Path, records: int, rate: float) -> dict[str, str]:
    return {"output": str(root / "output"), "records": str(records), "rate": str(rate)}


def script(root: Path, text: str) -> str:
    file = root / "failing.py"
    file.write_text(dedent(text))
    return str(file)


def test_a_job_runs_for_the_control_plane_and_survives_its_absence(
    session: str, control: StandIn, tmp_path: Path
) -> None:
    """Checkpoints go through HTTP; then the control plane is away for longer than they may take."""
    records = 4_000
    parameters = arguments(tmp_path, records, 250.0)
    with submitted(
        session, control, tmp_path, pipeline.__file__, interval_ms=200, parameters=parameters
    ) as run:
        control.wait_for(lambda: len(control.completed_ids) >= 3, START_S)
        (worker, *_) = control.events_of(WorkerStarted)
        control.stop()
        os.kill(worker.pid, signal.SIGKILL)  # The driver restarts the attempt by itself.
        wait_until(lambda: "attempt 2 runs" in run.log.read_text(), "attempt 2 runs")
        control.start()
        assert run.end(START_S) == 0, run.tail
        run.all_gone()
    (planned, *others) = control.events
    assert isinstance(planned, JobPlanned)
    assert not any(isinstance(event, JobPlanned) for event in others)
    assert planned.name == pipeline.NAME
    assert planned.checkpoints.interval_ms == 200
    assert planned.slot_count == 2
    assert planned.spark_application.startswith("local-")
    assert {op.uid for op in planned.operators if op.is_keyed} == {"numbering"}
    assert {edge.partitioning for edge in planned.edges} >= {"hash", "forward"}
    assert [e.attempt for e in control.events_of(AttemptStarted)] == [1, 2]
    assert control.events_of(Recovered)
    assert control.events_of(SubtaskMetrics)
    statuses = [event.status for event in control.events_of(JobChanged)]
    assert statuses[:2] == [JobStatus.INITIALIZING, JobStatus.RUNNING]
    assert statuses[-1] is JobStatus.FINISHED
    assert control.events_of(JobEnded) == [JobEnded(JobStatus.FINISHED)]
    told = [type(event) for event in control.events]
    assert told.index(JobEnded) < len(told) - 1 - told[::-1].index(JobChanged)
    assert control.events_of(CheckpointRequested), "the final checkpoint was asked for"
    acknowledged = control.events_of(Acknowledged)
    assert acknowledged
    assert not [h for ack in acknowledged for op in ack.operators for h in op.handles if h.inline]
    rows = rows_of(tmp_path / "output")
    assert count(rows, records) == EXACT
    assert not wrong_numbers(rows)
    assert {(line["job"], line["driver"]) for line in run.lines} == {(JOB, 1)}
    assert TOKEN not in run.log.read_text()


def test_a_cancelled_job_ends(session: str, control: StandIn, tmp_path: Path) -> None:
    parameters = arguments(tmp_path, 1_000_000, 200.0)
    with submitted(
        session, control, tmp_path, pipeline.__file__, interval_ms=200, parameters=parameters
    ) as run:
        control.wait_for(lambda: control.completed_ids, START_S)
        control.command(CancelJob("an operator said so"))
        assert run.end() == 0, run.tail
        run.all_gone()
    assert [e.status for e in control.events_of(JobChanged)][-2:] == ["cancelling", "canceled"]
    assert control.events_of(JobEnded) == [JobEnded(JobStatus.CANCELED)]
    assert not control.events_of(DriverLost)


def test_a_driver_without_its_jvm_ends_within_two_seconds(
    session: str, control: StandIn, tmp_path: Path
) -> None:
    parameters = arguments(tmp_path, 1_000_000, 200.0)
    with submitted(
        session, control, tmp_path, pipeline.__file__, interval_ms=200, parameters=parameters
    ) as run:
        control.wait_for(lambda: control.completed_ids, START_S)
        python = run.driver
        run.jvm.kill()
        # No parent may be there to reap it.
        wait_until(
            lambda: python.pid not in {p.pid for p in processes_of(run.session)},
            "the driver has ended",
            timeout_s=2,
        )
        run.all_gone()
    assert JobStatus.FAILED not in [event.status for event in control.events_of(JobChanged)]


def test_a_stopped_driver_leaves_its_job_to_the_next(
    session: str, control: StandIn, tmp_path: Path
) -> None:
    parameters = arguments(tmp_path, 1_000_000, 200.0)
    with submitted(
        session, control, tmp_path, pipeline.__file__, interval_ms=200, parameters=parameters
    ) as run:
        control.wait_for(lambda: control.completed_ids, START_S)
        run.driver.terminate()
        assert run.end() == 75, run.tail
        run.all_gone()
    assert [event.status for event in control.events_of(JobChanged)] == ["initializing", "running"]
    assert control.events_of(DriverLost)[0].cause == "SIGTERM was sent to the driver"
    # A sample that a slot had on its way may follow: the control plane passes it over.
    decided = [event for event in control.events if not isinstance(event, SubtaskMetrics)]
    assert decided[-1] == control.events_of(DriverLost)[0]
    state = control.coordination.state
    assert state is not None
    assert (state.plan, state.pending, state.ended) == (None, (), None)


def test_a_driver_whose_control_plane_is_gone_for_good_ends_with_all_its_processes(
    session: str, control: StandIn, tmp_path: Path
) -> None:
    parameters = arguments(tmp_path, 1_000_000, 200.0)
    with submitted(
        *(session, control, tmp_path, pipeline.__file__),
        alone_max_s=3.0,
        interval_ms=200,
        parameters=parameters,
    ) as run:
        control.wait_for(lambda: control.completed_ids, START_S)
        control.stop()
        assert run.end() == 75, run.tail
        run.all_gone()
        assert "this driver ends without its job: no control plane has answered" in run.tail


def test_a_fenced_driver_ends_at_once_and_commits_nothing(
    session: str, control: StandIn, tmp_path: Path
) -> None:
    parameters = arguments(tmp_path, 1_000_000, 200.0)
    with submitted(
        session, control, tmp_path, pipeline.__file__, interval_ms=200, parameters=parameters
    ) as run:
        control.wait_for(lambda: control.completed_ids, START_S)
        with control.changed:
            control.fenced = "driver 2 runs the job"
            control.changed.notify_all()
        assert run.end() == 76, run.tail
        run.all_gone()
    assert "driver 2 runs the job" in run.log.read_text()
    assert not control.events_of(DriverLost)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def broken():\n    raise ValueError('no such table')\nbroken()\n", "no such table"),
        ("print('did nothing')\n", "ended without running a job"),
        ("import sys\nsys.exit(3)\n", "sys.exit(3)"),
        (
            """\
            from weir.datastream import StreamExecutionEnvironment
            StreamExecutionEnvironment.get_execution_environment().execute("nothing")
            """,
            "no source",
        ),
    ],
)
def test_a_pipeline_that_comes_to_nothing_is_told(
    session: str, control: StandIn, tmp_path: Path, text: str, told: str
) -> None:
    with submitted(session, control, tmp_path, script(tmp_path, text)) as run:
        assert run.end(START_S) == 2, run.tail
        run.all_gone()
    (failed,) = control.events
    assert isinstance(failed, PipelineFailed)
    assert told in failed.cause
    assert "weir/" not in failed.cause
    if "broken" in text:
        assert 'failing.py", line 2, in broken' in failed.cause


def test_checkpoints_that_no_coordinator_can_expire_are_given_up(
    session: str, control: StandIn, tmp_path: Path
) -> None:
    """The control plane goes away when a barrier is on its way behind a record that takes long."""
    text = """\
        import os, sys, time
        from tests.spark.harness import environment, tagged_union
        from weir.datastream.connectors import CollectSink

        env = environment(None)
        marker = env.get_job_parameter("marker", "")

        def wait(value):
            while os.path.exists(marker):
                time.sleep(0.02)
            return value

        checkpoints = env.get_checkpoint_config().set_checkpoint_timeout(2_500)
        checkpoints.set_tolerable_checkpoint_failure_number(100)  # The machine may be busy.
        tagged_union(env, 100_000, 50.0).map(wait).uid("waits").sink_to(CollectSink())
        env.execute("waits")
        """
    marker = tmp_path / "marker"
    target, parameters = script(tmp_path, text), {"marker": str(marker)}
    with submitted(
        session, control, tmp_path, target, interval_ms=300, parameters=parameters
    ) as run:
        control.wait_for(lambda: control.completed_ids, START_S)
        marker.touch()
        control.wait_for(lambda: is_stuck(control))
        control.stop()
        wait_until(lambda: "control_plane_away" in run.log.read_text(), lambda: run.tail)
        marker.unlink()
        control.start()
        control.wait_for(lambda: control.events_of(CheckpointGivenUp))
        completed = len(control.completed_ids)
        control.wait_for(lambda: len(control.completed_ids) > completed)
        control.command(CancelJob("enough"))
        assert run.end() == 0, run.tail
        run.all_gone()
    (given_up,) = control.events_of(CheckpointGivenUp)
    assert given_up.reason is FailureReason.CONTROL_PLANE_AWAY
    assert control.coordination.aborted[0].checkpoint.checkpoint_id == given_up.checkpoint_id
    assert [e.attempt for e in control.events_of(AttemptStarted)] == [1]


def is_stuck(control: StandIn) -> bool:
    """Whether the driver has a trigger whose barrier does not get through."""
    state = control.coordination.state
    if state is None or not state.pending or not state.pending[0].missing:
        return False
    triggers = [
        c for c in control.coordination.commands if isinstance(c.command, TriggerCheckpoint)
    ]
    age_ms = time.time() * 1_000 - state.pending[0].barrier.triggered_at_ms
    return control.taken >= triggers[-1].number and age_ms > 500
