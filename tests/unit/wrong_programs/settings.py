"""Settings that a beginner chooses."""

from tests.unit.wrong_programs.harness import Wrong

CASES = [
    Wrong(
        "an interval as text",
        """
env.enable_checkpointing("1s")
""",
        "'1s' is not a length of time; give whole milliseconds, such as 1_000 for a "
        "second, or a Duration, a Time or a timedelta",
    ),
    Wrong(
        "an interval in seconds",
        """
env.enable_checkpointing(1)
""",
        "checkpoint interval is 1 ms; it takes milliseconds, at least 10: a second is 1_000",
    ),
    Wrong(
        "a count as text",
        """
env.get_checkpoint_config().set_tolerable_checkpoint_failure_number("3")
""",
        "tolerable failures takes a whole number, such as 3, not '3'",
    ),
    Wrong(
        "half a setting",
        """
env.configure(Configuration().set("parallelism", 2))
""",
        "there is no setting parallelism; did you mean parallelism.default?",
    ),
    Wrong(
        "a misspelt setting",
        """
env.configure(Configuration().set("execution.checkpointing.intervall", "10 s"))
""",
        "there is no setting execution.checkpointing.intervall; did you mean "
        "execution.checkpointing.interval?",
    ),
    Wrong(
        "a length in parsecs",
        """
env.configure(Configuration().set("execution.checkpointing.interval", "10 parsecs"))
""",
        "execution.checkpointing.interval cannot be '10 parsecs': a duration is a number "
        "with ms, s, min, h or d",
    ),
    Wrong(
        "a setting of Flink's",
        """
env.configure(Configuration().set("state.backend.changelog.enabled", "true"))
""",
        "state.backend.changelog.enabled cannot be 'true' here: state.backend.type is hashmap or "
        "rocksdb, and state has no changelog; leave it out",
    ),
    Wrong(
        "a restart strategy as text",
        """
env.set_restart_strategy("fixed-delay")
""",
        "set_restart_strategy takes a RestartConfig, not 'fixed-delay': write "
        "RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=3), say",
    ),
    Wrong(
        "an action that there is not",
        """
env.set_on_error("ignore")
""",
        "on_error takes 'fail', 'skip' or side_output=OutputTag(...), not 'ignore'",
    ),
    Wrong(
        "a max parallelism below the parallelism",
        """
env.set_parallelism(200).set_max_parallelism(100)
""",
        "max parallelism is 100; it must lie between the parallelism (200) and 32768",
    ),
    Wrong(
        "a file as checkpoint storage",
        """
env.get_checkpoint_config().set_checkpoint_storage(f"{directory}/notes.txt")
env.enable_checkpointing(1000)
env.from_collection([1]).print()
env.execute()
""",
        "checkpoint storage: cannot list DIRECTORY/notes.txt/JOB/attempts: Not a "
        "directory; a file stands where a directory is needed; choose an empty directory",
    ),
]
