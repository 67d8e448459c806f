"""A session of Spark that the script started: by default a task fails there for good at once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.spark.harness import SESSION, Count, count, processes_of, wait_until_gone, wrong_numbers

N = 1_500
RATE = 1_000.0
RETRIES = "local[4,1000]"  # Here a task is started again, as in a session of Weir's own.
ATTEMPTS_MAX = 10  # Each slot is lost a few times where Spark has several jobs for them.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)
SCRIPT = """
    import json, sys
    from pathlib import Path
    import psutil
    from pyspark.sql import SparkSession
    from tests.processes import cut
    from tests.spark.harness import (
        Cutter, Killer, Listening, collect, environment, numbered, tagged_union
    )

    class CutOff(Killer):
        def strike(self, pid):
            assert cut(psutil.Process()) > 2

    loss, master, records, rate, directory = sys.argv[1:]
    spark = SparkSession.builder.master(master).getOrCreate()
    lose = {"killed": Killer, "cut": Cutter, "driver": CutOff}[loss]("slot", index=1)
    env = environment(Path(directory, "checkpoints"))
    with Listening(lose):
        result = collect(numbered(tagged_union(env, int(records), float(rate))), "own")
    assert lose.killed is not None
    recoveries = [[one.attempt, one.restored_checkpoint] for one in result.history.recoveries]
    told = {"rows": result.collected, "recoveries": recoveries, "spark": spark.range(10).count()}
    Path(directory, "told.json").write_text(json.dumps(told))
"""


@pytest.mark.parametrize(
    ("loss", "master"),
    [("killed", "local[4]"), ("cut", "local[4]"), ("driver", "local[4]"), ("driver", RETRIES)],
)
def test_a_job_comes_back_from_a_lost_slot_in_a_session_of_the_script(
    loss: str, master: str, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of its connections cut, the driver gives Spark the job of the slots again.

    The ``python3`` that PySpark would take for tasks is not the script's, as in many a notebook.
    """
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(SESSION, own := f"{session}/{loss}")
    script = tmp_path / "script.py"
    script.write_text(dedent(SCRIPT))
    command = [sys.executable, str(script), loss, master, str(N), str(RATE), str(tmp_path)]
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["recoveries"]
    for attempt, restored in told["recoveries"]:
        assert 2 <= attempt <= ATTEMPTS_MAX
        assert restored >= 2
    assert count(told["rows"], N) == EXACT
    assert not wrong_numbers(told["rows"])
    assert told["spark"] == 10, "the session stays the script's"
    wait_until_gone(lambda: processes_of(own))
