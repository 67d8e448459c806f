"""Count words, record by record: the pipeline in ten lines.

Every word is printed with the number of its occurrences so far.

Run it: ``python -m weir.examples.word_count``.
"""

from weir.datastream import StreamExecutionEnvironment

LINES = (
    "to be or not to be that is the question",
    "whether it is nobler in the mind to suffer",
    "the slings and arrows of outrageous fortune",
    "or to take arms against a sea of troubles",
)


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1_000)
    (
        env.from_collection(LINES)
        .flat_map(lambda line: line.split())
        .map(lambda word: (word, 1))
        .key_by(lambda pair: pair[0])
        .sum(1)
        .print()
    )
    env.execute("word count")


if __name__ == "__main__":
    main()
