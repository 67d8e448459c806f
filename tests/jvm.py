"""Java for the tests: an archive of the classes that Spark loads, made once.

A Spark context loads some ten thousand classes before its first task. From an archive (dynamic
class data sharing, JEP 350) they are mapped instead of parsed, which saves a third of a JVM's
start. The archive holds for one Java and one Spark; its name says for which. Garbage is collected
without threads of its own: these JVMs make little of it.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

DIRECTORY = Path(__file__).resolve().parents[1] / "build" / "tests"
# The launcher's standard output is read by a script: no word about an archive may stand in it.
QUIET = "-Xlog:cds*=off -Xlog:class*=off"
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
START = """
from weir.spark.submit import open_session
context, _ = open_session("local[2]", 2, "archive")
context.parallelize(range(2), 2).map(lambda value: value).collect()
context.stop()
gateway = context._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def archived(environment: Mapping[str, str]) -> str:
    """The options with which Spark's JVMs use the archive, which is made where there is none."""
    archive = DIRECTORY / f"spark-{_version(environment)}.jsa"
    if not archive.exists():
        _make(archive, environment)
    return f"-XX:SharedArchiveFile={archive} -XX:+UseSerialGC {QUIET}"


def for_all(*own: str) -> str:
    """The options of all JVMs that a test starts, executors too: the run's archive, and its own."""
    return " ".join((os.environ.get(SUBMIT_OPTIONS, ""), *own)).strip()


def _make(archive: Path, environment: Mapping[str, str]) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}")
    options = f"-XX:ArchiveClassesAtExit={partial} -XX:+UseSerialGC {QUIET}"
    try:
        subprocess.run(
            [sys.executable, "-c", START],
            env={**environment, SUBMIT_OPTIONS: options},
            capture_output=True,
            check=True,
            start_new_session=True,
        )
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)


def _version(environment: Mapping[str, str]) -> str:
    """A digest of the Java and the jars that an archive holds for."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    told = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    directory = Path(_find_spark_home(), "jars")
    jars = sorted((jar.name, jar.stat().st_mtime_ns) for jar in directory.iterdir())
    text = f"{told!r} {directory} {jars}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
