"""Secrets in library mode: ``python pipeline.py`` with variables, run without Spark."""

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import TIMEOUT_S

VALUE = "correct horse battery staple"
PIPELINE = """
from weir.common import Types
from weir.datastream import MapFunction, StreamExecutionEnvironment
from weir.datastream.execution import ExecutionOptions, overriding

class Uses(MapFunction):
    def open(self, runtime_context):
        self.secret = runtime_context.get_secret("PASSWORD")

    def map(self, value):
        assert len(self.secret) == LENGTH
        if value == RAISES_AT:
            raise ValueError(f"the warehouse refuses {self.secret}")
        return value

env = StreamExecutionEnvironment.get_execution_environment()
if ASKS:
    print("the driver has", len(env.get_secret("PASSWORD")))
env.from_collection([1, 2, 3], Types.LONG()).map(Uses(), output_type=Types.LONG()).print()
with overriding(ExecutionOptions(master="in-process")):
    env.execute("uses")
"""


def run(
    directory: Path, *, asks: bool = True, raises_at: int = 0, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """The pipeline in a process of its own, which ends with the job."""
    script = directory / "pipeline.py"
    values = f"LENGTH, RAISES_AT, ASKS = {len(VALUE)}, {raises_at}, {asks}\n"
    script.write_text(values + PIPELINE)
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_driver_and_functions_get_the_variable(tmp_path: Path) -> None:
    done = run(tmp_path, WEIR_SECRET_PASSWORD=VALUE)
    assert done.returncode == 0, done.stderr
    assert f"the driver has {len(VALUE)}" in done.stdout


def test_functions_get_the_contents_of_a_file_that_the_driver_did_not_ask_for(
    tmp_path: Path,
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{VALUE}\n")
    done = run(tmp_path, asks=False, WEIR_SECRET_PASSWORD_FILE=str(file))
    assert done.returncode == 0, done.stderr


def test_a_cause_with_the_value_is_masked(tmp_path: Path) -> None:
    done = run(tmp_path, raises_at=2, WEIR_SECRET_PASSWORD=VALUE)
    assert done.returncode != 0
    assert "the warehouse refuses ***" in done.stderr
    assert VALUE not in done.stderr + done.stdout


def test_an_unknown_secret_says_how_to_set_it_in_driver_and_function(tmp_path: Path) -> None:
    for asks in (True, False):
        done = run(tmp_path, asks=asks)
        assert done.returncode != 0
        assert "set WEIR_SECRET_PASSWORD, or WEIR_SECRET_PASSWORD_FILE" in done.stderr
        assert 'submit the job with "secrets": ["PASSWORD"]' in done.stderr
