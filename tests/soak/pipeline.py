"""The job of a round: numbered records of two sources, and random programs beside them.

Argument: ``round``, the directory of the round, whose ``round.json`` has the programs and settings.
"""

from pathlib import Path

from tests.programs.build import MAX_PARALLELISM
from tests.soak import wall_clock
from tests.soak.place import RATE, RECORDS, Place
from tests.soak.written import write
from tests.spark.harness import numbered, tagged_union, to_files
from weir.common import Configuration, Duration
from weir.config import RestartConfig, RestartStrategyKind
from weir.datastream import StreamExecutionEnvironment

NAME = "soak"
SETTINGS = {
    "weir.state.allow-pickled": "true",  # A program may declare a state as pickles.
    # Short enough for what is stopped for some seconds to be missed, now and then.
    "heartbeat.interval": "200 ms",
    "heartbeat.timeout": "3 s",
}


def build(env: StreamExecutionEnvironment, place: Place) -> None:
    """Add the pipelines of a round to ``env``, and its settings."""
    told = place.read()
    drawn = {
        "execution.checkpointing.data-inline-threshold": str(told["inline_max_bytes"]),
        "execution.checkpointing.incremental": str(told["is_incremental"]).lower(),
        "execution.checkpointing.local-backup.enabled": str(told["keeps_copies"]).lower(),
        "execution.checkpointing.num-retained": str(told["retained"]),
        "state.backend.type": told["backend"],
    }
    env.configure(Configuration(SETTINGS | drawn))
    env.set_max_parallelism(MAX_PARALLELISM)
    env.enable_checkpointing(told["interval_ms"])
    # The full disk, not the number of restarts, is what ends.
    env.set_restart_strategy(
        RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1_000_000, delay_ms=200)
    )
    config = env.get_checkpoint_config()
    config.set_tolerable_checkpoint_failure_number(told["tolerable_failures"])
    if told["alignment_timeout_ms"] is not None:
        config.enable_unaligned_checkpoints()
        config.set_aligned_checkpoint_timeout(Duration.of_millis(told["alignment_timeout_ms"]))
    shifted = wall_clock.Shifted(str(place.offset))
    stream = tagged_union(env, RECORDS, RATE, hurry=place.hurry).map(shifted).uid("clock")
    to_files(numbered(stream), place.numbered)
    for number, program in enumerate(told["programs"]):
        write(env, program["text"], program["outputs"], place.output_of(number), place.inputs)


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    place = Place(Path(env.get_job_parameter("round", "round")))
    wall_clock.install(place.offset)
    build(env, place)
    env.execute(NAME)


if __name__ == "__main__":
    main()
