"""The settings of a job by configuration keys and by setters."""

from pyflink.common import Configuration, Duration, RestartStrategies
from pyflink.datastream import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    StreamExecutionEnvironment,
)

if __name__ == "__main__":
    config = Configuration()
    config.set_string("execution.runtime-mode", "STREAMING")
    config.set_string("execution.checkpointing.interval", "1 min")
    config.set_string("state.backend.type", "hashmap")
    config.set_string("restart-strategy.type", "exponential-delay")
    config.set_string("pipeline.global-job-parameters", "greeting:hello")
    config.set_integer("parallelism.default", 2)
    config.set_boolean("pipeline.object-reuse", False)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1_000))
    env.get_config().set_auto_watermark_interval(200)
    env.get_config().enable_object_reuse()
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
    checkpoints.set_min_pause_between_checkpoints(500)
    checkpoints.set_checkpoint_timeout(60_000)
    checkpoints.set_max_concurrent_checkpoints(1)
    checkpoints.set_tolerable_checkpoint_failure_number(2)
    checkpoints.set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    checkpoints.set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
    checkpoints.enable_unaligned_checkpoints()
    checkpoints.set_aligned_checkpoint_timeout(Duration.of_seconds(30))
    env.set_parallelism(1)
    env.disable_operator_chaining()

    class Greet:
        def __init__(self, greeting):
            self.greeting = greeting

        def __call__(self, name):
            return f"{self.greeting} {name}"

    with env.from_collection(["ada", "bob"]).map(Greet("hello")).execute_and_collect() as results:
        for result in results:
            print(result)
