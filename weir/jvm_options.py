"""The options of the JVMs of Spark that Weir starts on its own machine.

They only start Python and pass messages. The optimising compiler takes a third of the processor
time of a short job while they start, which never pays. Of the rest a quarter goes into some ten
thousand classes: from an archive (dynamic class data sharing, JEP 350) they are mapped instead of
parsed, and all JVMs share that memory.

``weir.spark.class_archive`` writes the archive beside the packages of this Python. A JVM that it
was not written for, of another Java or another Spark, goes on without.
"""

import sys
from pathlib import Path
from typing import Final

JAVA_LEAST: Final = 17  # Spark starts on no older one.
OPTIONS: Final = "-XX:TieredStopAtLevel=1"
ARCHIVE: Final = Path(sys.prefix, "share", "weir", "spark-classes.jsa")
# A JVM writes about its archive to standard output, which Spark's scripts read.
QUIET: Final = "-Xlog:cds*=off -Xlog:class*=off"


def jvm_options() -> str:
    """The options of a JVM that starts now, as Spark's settings want them."""
    if not ARCHIVE.is_file() or " " in str(ARCHIVE):  # Spark would take a space for an end.
        return OPTIONS
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} {QUIET}"
