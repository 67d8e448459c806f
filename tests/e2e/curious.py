"""A pipeline that looks for the services' secrets before its job runs, and prints what it reads.

Parameter: ``secrets``, a file of the services.
"""

import os
from pathlib import Path

from weir.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(300)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        return f"{error.strerror}".encode()


processes = [Path("/proc", entry, "environ") for entry in os.listdir("/proc") if entry.isdecimal()]
seen = sum(b"REDIS_URL=" in read(path) for path in processes)
key = read(Path(env.get_job_parameter("secrets", "")))
print(f"I am {os.getuid()}; environments of services: {seen} of {len(processes)}; key: {key!r}")
log = Path("..", "driver.log")
try:
    log.unlink()
    print("I removed my log", flush=True)
except OSError as error:
    print(f"my log: {error.strerror}", flush=True)

env.from_collection(list(range(100))).map(lambda x: x + 1).print()
env.execute("curious")
