"""A pipeline that uses a secret in its driver and on its slots, and is careless with it.

Parameters: ``told``, a directory. Driver and subtasks each leave the digest of the value there, and
print the value. Once there is a file ``raise``, the function raises with the value in its message.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weir.common import Types, WatermarkStrategy
from weir.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from weir.operators.sources import DataGeneratorSource

NAME = "WAREHOUSE_PASSWORD"
RATE = 50.0


def digest(value: str) -> str:
    """A digest that shows that a value was there, without the value."""
    return hashlib.sha256(value.encode()).hexdigest()


class Careless(MapFunction):
    """Prints its secret when it is opened, and raises with it when it is told to."""

    def __init__(self, told: Path) -> None:
        self._told = told

    def open(self, runtime_context: RuntimeContext) -> None:
        self._secret = runtime_context.get_secret(NAME)
        index = runtime_context.get_index_of_this_subtask()
        (self._told / f"slot-{index}").write_text(digest(self._secret))
        print(f"slot {index} prints {self._secret}", flush=True)
        print(f"slot {index} complains of {quote(self._secret)}", file=sys.stderr, flush=True)

    def map(self, value: int) -> int:
        if (self._told / "raise").exists():
            raise ValueError(f"the warehouse refuses {self._secret}")
        return value


def identity(value: int) -> int:
    """The record of an index."""
    return value


def is_none(_: Any) -> bool:
    """False for every record."""
    return False


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    told = Path(env.get_job_parameter("told", "told"))
    secret = env.get_secret(NAME)
    (told / "driver").write_text(digest(secret))
    print(f"the driver prints {secret}", flush=True)
    env.enable_checkpointing(500)
    source = DataGeneratorSource(identity, rows_per_second=RATE, type_info=Types.LONG())
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").uid("numbers")
    careless = numbers.rebalance().map(Careless(told), output_type=Types.LONG()).uid("careless")
    careless.name(f"Careless of {secret}").filter(is_none).uid("none").print().uid("out")
    env.execute("secretive")


if __name__ == "__main__":
    main()
