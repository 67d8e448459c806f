"""``weir doctor``: whether a job can run here, and on the workers of a master.

Each check is one line: ok, or what to do.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import IO

from weir.cli.uri import absolute
from weir.tools.doctor import (
    Finding,
    check_clock,
    check_java,
    check_packages,
    check_ports,
    check_python,
    check_storage,
    check_user,
)

ALL_WELL, SOMETHING_WRONG = 0, 1
IN_PROCESS = "in-process"


def run(arguments: Namespace, out: IO[str] = sys.stdout) -> int:
    """Print the findings as they come, and return the exit code."""
    is_ok = True
    for finding in _findings(arguments.master, arguments.storage):
        print(finding, file=out, flush=True)
        is_ok = is_ok and finding.is_ok
    return ALL_WELL if is_ok else SOMETHING_WRONG


def _findings(master: str | None, storage: str | None) -> Iterator[Finding]:
    uri = None if storage is None else absolute(storage)
    local = [check_python(), check_packages()]
    if master != IN_PROCESS:
        local += [check_java(), check_user()]
    local += [check_ports(master), check_clock()]
    yield from local
    if uri is not None:
        yield from check_storage(uri)
    if master is None or master == IN_PROCESS:
        return
    broken = [finding.name for finding in local if not finding.is_ok]
    if broken:
        yield Finding(
            "workers", f"not asked, because of {', '.join(broken)}", "repair that, then try again"
        )
        return
    from weir.spark.workers_check import check_workers

    yield from check_workers(master, uri)
