"""``python -m weir.spark.class_archive``: write the archive of the classes that Spark loads.

Spark is started once and runs one task; its JVM writes the archive as it ends. That takes some
fifteen seconds, and shortens each later start of Spark on this machine by a quarter
(``weir.jvm_options``). To be done again with another Java or another Spark.
"""

import os
import subprocess
import sys
from typing import Final

from weir.jvm_options import ARCHIVE, QUIET
from weir.spark.submit import open_session

TIMEOUT_S: Final = 300.0
_LAST_LINES: Final = 5


def start_spark() -> None:
    """Start Spark, run a task, and end its JVM as it ends by itself."""
    context, _ = open_session("local[2]", 2, "class-archive")
    context.parallelize(range(2), 2).map(lambda value: value).collect()
    context.stop()
    gateway = context._gateway
    assert gateway is not None, "the context had a JVM"
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def write_archive() -> None:
    """Write the archive in place of the one that is there.

    Raises:
        OSError: It cannot be written there.
        subprocess.SubprocessError: Spark does not start, or this Java writes no archive.
    """
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)  # A JVM that maps one cannot write one.
    partial = ARCHIVE.with_suffix(f".{os.getpid()}")
    own = os.environ.get("SPARK_SUBMIT_OPTS", "")
    options = f"{own} -XX:ArchiveClassesAtExit={partial} {QUIET}"
    start = f"from {__spec__.name} import start_spark; start_spark()"
    try:
        subprocess.run(
            [sys.executable, "-c", start],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        with partial.open("rb") as written:  # A JVM that maps one cut short dies of it.
            os.fsync(written.fileno())
        partial.replace(ARCHIVE)
    finally:
        partial.unlink(missing_ok=True)


def main() -> int:
    """Write it and say so; 1 where that fails, with the end of what Spark said."""
    try:
        write_archive()
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or "").splitlines()[-_LAST_LINES:]
        print(f"The classes of Spark are not archived: {error}", *said, sep="\n", file=sys.stderr)
        return 1
    print(f"The classes of Spark are archived: {ARCHIVE}, {ARCHIVE.stat().st_size / 1e6:.0f} MB.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
