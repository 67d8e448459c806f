"""One run of a pipeline over given records, with a kill in one of its checkpoints or without."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weir.errors import ConfigError
from weir.testing.captured_pipeline import Pipeline
from weir.testing.pipeline_harness import PipelineHarness
from weir.testing.stepped_cluster import KillPoint


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run."""

    outputs: Mapping[str, list[Any]]  # Committed records by the id of their sink.
    checkpoints: int  # Completed ones, the last of them at the end of the inputs.
    restarts: int

    @property
    def output(self) -> list[Any]:
        """The committed records of the only sink.

        Raises:
            ConfigError: There are several sinks.
        """
        if len(self.outputs) != 1:
            raise ConfigError(f"there are several outputs: {', '.join(self.outputs)}")
        return next(iter(self.outputs.values()))


def run(
    pipeline: Pipeline,
    inputs: Mapping[str, Iterable[Any]] | Iterable[Any],
    *,
    checkpoint_every: int = 10,
    kill: KillPoint | None = None,
    kill_at: int = 2,
    **settings: Any,
) -> Run:
    """Run a pipeline over given records to its end.

    Args:
        inputs: The elements of each source by its uid or name; of the only source without one.
        checkpoint_every: The number of elements of each source between two checkpoints.
        kill: The point at which a worker process is killed; None: the run is undisturbed.
        kill_at: The checkpoint in which that happens, counted from 1.
        settings: As for ``PipelineHarness``.

    Raises:
        ConfigError: An input belongs to no source, or there is no checkpoint ``kill_at``.
        JobFailedError: A function failed.
    """
    if checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every is {checkpoint_every}; at least 1")
    with PipelineHarness(pipeline, **settings) as job:
        named = inputs.items() if isinstance(inputs, Mapping) else [(None, inputs)]
        elements: dict[str | None, list[Any]] = {name: list(given) for name, given in named}
        taken = completed = 0
        for start in range(0, max(map(len, elements.values()), default=0), checkpoint_every):
            for name, given in elements.items():
                job.send(*given[start : start + checkpoint_every], to=name)
            taken += 1
            if kill is not None and taken == kill_at:
                job.kill_in_checkpoint(kill)
                completed += kill is KillPoint.COMMIT
            else:
                job.checkpoint()
                completed += 1
        if kill is not None and taken < kill_at:
            raise ConfigError(
                f"the records make for {taken} checkpoints, so there is none to kill at {kill_at}; "
                "lower kill_at or checkpoint_every"
            )
        job.finish()
        outputs = {sink: job.committed(sink) for sink in job.sinks}
        return Run(outputs, completed + 1, job.restarts)
