"""Numbers into files, exactly once, with a checkpoint every 50 ms."""

import sys

from pyflink.common import Configuration
from pyflink.common.serialization import Encoder
from pyflink.common.typeinfo import Types
from pyflink.common.watermark_strategy import WatermarkStrategy
from pyflink.datastream import CheckpointingMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from pyflink.datastream.connectors.number_seq import NumberSequenceSource


def main(output):
    config = Configuration()
    config.set_string("execution.checkpointing.storage", "jobmanager")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.enable_checkpointing(50, CheckpointingMode.EXACTLY_ONCE)
    env.from_source(NumberSequenceSource(1, 500), WatermarkStrategy.no_watermarks(), "numbers").map(
        lambda n: f"number {n}", output_type=Types.STRING()
    ).sink_to(
        FileSink.for_row_format(output, Encoder.simple_string_encoder("UTF-8"))
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .with_output_file_config(
            OutputFileConfig.builder().with_part_prefix("part").with_part_suffix(".txt").build()
        )
        .build()
    ).name("files")
    env.execute("file sink")


if __name__ == "__main__":
    main(sys.argv[1])
