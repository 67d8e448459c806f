"""A job in a session of Spark that has addresses of IPv6 alone, as on such a cluster."""

import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

from tests.ipv6 import NEEDS_IPV6

COUNT, KEYS = 60, 3
SCRIPT = f"""
from pyspark import SparkConf, SparkContext
from weir.datastream import StreamExecutionEnvironment

conf = SparkConf().setMaster("local[2]").setAppName("ipv6")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    conf.set(name, "[::1]")
conf.set("spark.driver.extraJavaOptions", "-Djava.net.preferIPv6Addresses=true")
conf.set("spark.ui.enabled", "false")
context = SparkContext(conf=conf)
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(100)
numbers = env.from_collection(list(range({COUNT})))
numbers.key_by(lambda n: n % {KEYS}).reduce(lambda a, b: a + b).print()
env.execute("ipv6")
context.stop()
"""


@NEEDS_IPV6
def test_a_job_runs_where_spark_has_addresses_of_ipv6(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script],
        env={
            **os.environ,
            "SPARK_PREFER_IPV6": "true",
            "SPARK_LOCAL_IP": "::1",
            "SPARK_LOCAL_DIRS": str(tmp_path),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (line.partition("> ")[2] for line in done.stdout.splitlines())
    sums = [one for key in range(KEYS) for one in accumulate(range(key, COUNT, KEYS))]
    assert sorted(int(line) for line in lines if line) == sorted(sums)
