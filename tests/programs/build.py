"""The text of a program as a job: what ``env.execute()`` would run, kept instead of run."""

from functools import lru_cache
from types import CodeType
from typing import Any

from tests.programs.source_text import PRELUDE
from weir.datastream import StreamExecutionEnvironment
from weir.graph.logical import JobGraph

MAX_PARALLELISM = 8


@lru_cache(maxsize=64)
def compiled(text: str) -> CodeType:
    """The code of a program's text."""
    return compile(text, "<program>", "exec")


@lru_cache(maxsize=1)
def _imported() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compiled(PRELUDE), names)
    return names


def namespace() -> dict[str, Any]:
    """The names that a program has imported.

    Its own functions belong to a module that cannot be imported, as those of a script do.
    """
    return {**_imported(), "__name__": "program"}


def environment(parallelism: int, *, chaining: bool = True) -> StreamExecutionEnvironment:
    """An environment as a variation wants it."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism).set_max_parallelism(MAX_PARALLELISM)
    return env if chaining else env.disable_operator_chaining()


def write(text: str, env: StreamExecutionEnvironment) -> None:
    """Run the statements of a program against an environment.

    Raises:
        WeirError: The pipeline is refused while it is being written.
    """
    exec(compiled(text), {**namespace(), "env": env})


def graph_of(text: str, parallelism: int, *, chaining: bool = True) -> JobGraph:
    """The job graph of a program's text.

    Raises:
        WeirError: The pipeline is refused while it is being written.
    """
    env = environment(parallelism, chaining=chaining)
    write(text, env)
    return env.get_job_graph("program")
