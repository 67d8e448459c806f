"""Settings of Spark reach it whole by the properties file, and show up on no command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark

from jobs.drivers.spark_command import properties_text

SECRET = "hunter2"
SETTINGS = {
    "spark.hadoop.password": SECRET,
    "spark.app.odd": 'a=b:c #!"quoted" \\ back\\slash é😀',
    "spark.app.lines": "one\ntwo\tthree",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
SCRIPT = """
import json, time
from pyspark import SparkContext
context = SparkContext.getOrCreate()
print(json.dumps(dict(context.getConf().getAll())), flush=True)
time.sleep(600)
"""


def test_settings_reach_spark_by_a_file_alone(tmp_path: Path) -> None:
    properties, script = tmp_path / "spark.properties", tmp_path / "script.py"
    # What spark-defaults.conf says comes first, as of a launcher: of two lines the last counts.
    properties.write_text("spark.ui.enabled true\n" + properties_text(SETTINGS))
    script.write_text(SCRIPT)
    assert pyspark.__file__ is not None
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with subprocess.Popen(
        [*command, "--properties-file", str(properties), str(script)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as submitted:
        try:
            assert submitted.stdout is not None
            line = next((one for one in submitted.stdout if one.startswith("{")), "{}")
            jvm = psutil.Process(submitted.pid)
            family = [jvm, *jvm.children(recursive=True)]
            words = [word for process in family for word in command_line(process)]
        finally:
            for process in psutil.Process(submitted.pid).children(recursive=True):
                process.kill()
            submitted.kill()
    known = json.loads(line)
    assert {name: known.get(name) for name in SETTINGS} == SETTINGS
    assert any(str(properties) in word for word in words)
    assert not any(SECRET in word for word in words)


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # It has ended; a zombie counts as such.
        return []
