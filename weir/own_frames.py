"""The frames of a stack that are Weir's own, by their file.

A path decides and not a module: a traceback of a slot comes as text, from a machine where Weir may
lie elsewhere. Examples count as the user's code.
"""

import re
from typing import Final

ROOMS: Final = (
    *("channels", "cli", "common", "datastream", "graph", "jobmaster", "local", "managed"),
    *("operators", "output", "protocol", "secrets", "spark", "state", "storage", "testing"),
    *("tools", "wire", "worker"),
    "runtime",  # Of drivers and slots before 0.2.
)
MODULES: Final = (
    *("__init__", "__main__", "bounds", "config", "errors", "fault_points", "ids", "own_frames"),
    *("child_process", "jvm_options", "spark_master", "spark_settings", "untrusted_files"),
)
OWN_FRAME: Final = re.compile(
    rf"[/\\]weir[/\\](?:(?:{'|'.join(ROOMS)})[/\\]|(?:{'|'.join(MODULES)})\.py$)"
)
