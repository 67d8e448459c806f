"""A pipeline in one process and one thread, without Spark and without a seed."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.common import Types
from weir.config import (
    ChannelConfig,
    CheckpointConfig,
    JobConfig,
    RestartConfig,
    RestartStrategyKind,
    StateConfig,
)
from weir.datastream import (
    KeyedProcessFunction,
    OutputTag,
    RuntimeContext,
    ValueStateDescriptor,
)
from weir.datastream.environment import StreamExecutionEnvironment
from weir.graph.logical import JobGraph
from weir.ids import JobId
from weir.local.cluster import JobResult, run_in_process
from weir.operators.sinks import CollectSink
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    JobChanged,
    JobEvent,
    Notice,
    Recovered,
)
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import SubtaskMetrics

WORDS = ["to", "be", "or", "not", "to", "be"] * 200


class FailsOnce:
    """Marks records, and throws at one of them the first time it comes."""

    thrown = False

    def __init__(self, at: int, pause_s: float = 0.0) -> None:
        self.left = at
        self._pause_s = pause_s

    def __call__(self, word: str) -> tuple[str, int]:
        time.sleep(self._pause_s)
        self.left -= 1
        if not self.left and not FailsOnce.thrown:
            FailsOnce.thrown = True
            raise ValueError("thrown once")
        return word, 1


def counting(mark: object) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    words = env.from_collection(WORDS).rebalance().map(mark)  # type: ignore[arg-type]
    counts = words.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counts.sink_to(CollectSink())
    return env.get_job_graph("word count")


def last_counts(collected: list[tuple[str, int]]) -> dict[str, int]:
    return {word: max(n for w, n in collected if w == word) for word in {w for w, _ in collected}}


def test_words_are_counted_without_checkpoints() -> None:
    result = run_in_process(counting(lambda word: (word, 1)), JobConfig(parallelism=2))
    assert result.status is JobStatus.FINISHED
    assert last_counts(result.collected) == {"to": 400, "be": 400, "or": 200, "not": 200}
    assert len(result.collected) == len(WORDS)


def test_a_function_that_throws_costs_no_record(tmp_path: Path) -> None:
    FailsOnce.thrown = False
    config = JobConfig(
        parallelism=2,
        checkpoints=CheckpointConfig(interval_ms=10, storage=str(tmp_path)),
        restart=RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1, delay_ms=0),
    )
    result = run_in_process(counting(FailsOnce(300)), config, job_id=JobId("words"))
    assert FailsOnce.thrown
    assert result.status is JobStatus.FINISHED
    assert sum(isinstance(event, Recovered) for event in result.events) == 1
    assert any(isinstance(e, CheckpointSettled) and e.failure is None for e in result.events)
    assert last_counts(result.collected) == {"to": 400, "be": 400, "or": 200, "not": 200}
    assert len(result.collected) == len(WORDS)


def state_in_files(tmp_path: Path, *, restarts: int, local_copies: bool) -> JobConfig:
    """The settings of a job all of whose state is in files, of which slots may keep copies."""
    return JobConfig(
        parallelism=2,
        checkpoints=CheckpointConfig(
            interval_ms=10, storage=str(tmp_path / "checkpoints"), inline_max_bytes=1
        ),
        restart=RestartConfig(
            kind=RestartStrategyKind.FIXED_DELAY, attempts_max=restarts, delay_ms=0
        ),
        state=StateConfig(
            local_copies=local_copies, local_copies_directory=str(tmp_path / "copies")
        ),
        channels=ChannelConfig(batch_rows_max=10),
    )


def test_a_restart_reads_the_local_copies_of_its_slots_which_go_with_the_job(
    tmp_path: Path,
) -> None:
    FailsOnce.thrown = False
    settings = state_in_files(tmp_path, restarts=1, local_copies=True)
    result = run_in_process(counting(FailsOnce(580, 0.0003)), settings, job_id=JobId("words"))
    (recovered,) = [event for event in result.events if isinstance(event, Recovered)]
    assert recovered.restored_checkpoint is not None
    assert recovered.restored_local_bytes is not None
    assert recovered.restored_bytes / 2 < recovered.restored_local_bytes
    assert last_counts(result.collected) == {"to": 400, "be": 400, "or": 200, "not": 200}
    assert not list((tmp_path / "copies").iterdir())


@pytest.mark.parametrize("keeps_copies", [True, False])
def test_a_worker_that_meets_a_damaged_file_has_the_next_attempt_read_all_of_them(
    tmp_path: Path, keeps_copies: bool
) -> None:
    """The driver itself has not read them, and counts no failure; the first one was the user's."""
    FailsOnce.thrown = False
    completed: list[int] = []

    def damage(event: JobEvent) -> None:
        if isinstance(event, CheckpointSettled) and event.failure is None:
            completed.append(event.checkpoint_id)
        if isinstance(event, JobChanged) and event.status is JobStatus.FAILING and not damaged:
            for copy in (tmp_path / "copies").glob("*/*"):
                copy.unlink()
            directory = tmp_path / "checkpoints" / "words" / f"chk-{completed[-1]}"
            for file in directory.glob("*/*"):
                file.write_bytes(b"?" * file.stat().st_size)
                damaged.append(completed[-1])

    damaged: list[int] = []
    result = run_in_process(
        counting(FailsOnce(580, 0.0003)),
        state_in_files(tmp_path, restarts=1, local_copies=keeps_copies),
        job_id=JobId("words"),
        emit=damage,
    )
    starts = [event for event in result.events if isinstance(event, AttemptStarted)]
    assert len(completed) > 1
    assert [start.restored_checkpoint for start in starts[:2]] == [None, damaged[0]]
    third = starts[2].restored_checkpoint
    assert third is not None
    assert third < damaged[0]
    causes = [event.cause for event in result.events if isinstance(event, Recovered)]
    assert len(causes) == 1, "the second attempt never ran"
    assert "its checksum does not match" in causes[0]
    notices = [event.text for event in result.events if isinstance(event, Notice)]
    assert any(f"checkpoint {damaged[0]} is passed over" in text for text in notices)
    assert last_counts(result.collected) == {"to": 400, "be": 400, "or": 200, "not": 200}
    assert len(result.collected) == len(WORDS)


def test_a_function_that_always_throws_fails_the_job_with_its_cause() -> None:
    def fail(word: str) -> tuple[str, int]:
        raise ValueError("this never works")

    result = run_in_process(counting(fail), JobConfig(parallelism=2))
    assert result.status is JobStatus.FAILED
    assert "this never works" in result.cause


BAD = OutputTag("bad")


def skipping(limit: int, mark: object) -> JobGraph:
    """Every ``not`` of the words is bad, in a function that keeps a count of all words."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    words = env.from_collection(WORDS, Types.STRING()).rebalance().map(mark)  # type: ignore[arg-type]
    counted = words.key_by(lambda pair: 0).process(CountsAll())
    counted.on_error(side_output=BAD, limit=limit).uid("counted")
    counted.sink_to(CollectSink()).uid("good")
    counted.get_side_output(BAD).map(lambda bad: bad.message).sink_to(CollectSink()).uid("bad")
    return env.get_job_graph("bad words")


class CountsAll(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield self.count.value()
        if value[0] == "not":
            raise ValueError(f"word {self.count.value()}")
        yield value[0]


def run_failing_once(limit: int, storage: Path) -> JobResult:
    FailsOnce.thrown = False
    config = JobConfig(
        parallelism=2,
        checkpoints=CheckpointConfig(interval_ms=10, storage=str(storage)),
        restart=RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=3, delay_ms=0),
    )
    return run_in_process(skipping(limit, FailsOnce(300)), config, job_id=JobId("words"))


def test_bad_records_count_once_and_leave_nothing_across_a_restart(tmp_path: Path) -> None:
    """The limit is their very number, so one that counted twice would fail the job."""
    result = run_failing_once(200, tmp_path)
    assert FailsOnce.thrown
    assert (result.status, result.cause) == (JobStatus.FINISHED, "")
    assert any(isinstance(e, CheckpointSettled) and e.failure is None for e in result.events)
    good = [value for value in result.collected if isinstance(value, int)]
    assert good == list(range(1, 1_001))
    causes = [v for v in result.collected if isinstance(v, str) and v.startswith("word ")]
    assert len(causes) == 200
    words = Counter(v for v in result.collected if isinstance(v, str) and v not in causes)
    assert words == {"to": 400, "be": 400, "or": 200}
    metrics = [e for e in result.events if isinstance(e, SubtaskMetrics) and e.bad_records]
    assert {e.chain.operator for e in metrics} == {"counted"}
    assert 0 < max(e.bad_records for e in metrics if e.attempt == 2) <= 200


def test_one_bad_record_beyond_the_limit_fails_the_job_for_good(tmp_path: Path) -> None:
    result = run_failing_once(199, tmp_path)
    assert result.status is JobStatus.FAILED
    assert "failed on 200 records in subtask counted-" in result.cause
    assert "more than its limit of 199" in result.cause
    assert "ValueError: word " in result.cause
    attempts = [e for e in result.events if isinstance(e, AttemptStarted)]
    assert len(attempts) == 2, "a restart would meet the same records"
