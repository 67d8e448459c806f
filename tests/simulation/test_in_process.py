"""A pipeline in one process and one thread, without Spark and without a seed."""

from pathlib import Path

from weir.config import CheckpointConfig, JobConfig, RestartConfig, RestartStrategyKind
from weir.datastream.environment import StreamExecutionEnvironment
from weir.graph.logical import JobGraph
from weir.ids import JobId
from weir.local.cluster import run_in_process
from weir.operators.sinks import CollectSink
from weir.protocol.events import CheckpointSettled, Recovered
from weir.protocol.lifecycle import JobStatus

WORDS = ["to", "be", "or", "not", "to", "be"] * 200


class FailsOnce:
    """Marks records, and throws at one of them the first time it comes."""

    thrown = False

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, word: str) -> tuple[str, int]:
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


def test_a_function_that_always_throws_fails_the_job_with_its_cause() -> None:
    def fail(word: str) -> tuple[str, int]:
        raise ValueError("this never works")

    result = run_in_process(counting(fail), JobConfig(parallelism=2))
    assert result.status is JobStatus.FAILED
    assert "this never works" in result.cause
