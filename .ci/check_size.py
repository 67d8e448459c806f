#!/usr/bin/env python3
"""The size of rooms and modules outside the tests; prints each that is larger than it may be."""

import sys
from collections import Counter
from pathlib import PurePath

from tests.committed import ROOT, committed_files

MODULES_MAX, LINES_MAX = 25, 650
# Each is one machine with its table.
LONGER = {"weir/jobmaster/job_master.py": 800, "weir/protocol/coordinator.py": 1_100}
PACKAGES = ("weir", "controlplane", "checkpoints", "jobs", "frontend")


def main() -> int:
    """Print every place; 1 where there is one."""
    paths = [PurePath(name) for name in committed_files() if name.endswith(".py")]
    modules = [path for path in paths if path.parts[0] in PACKAGES]
    places = []
    for path in modules:
        count, most = len((ROOT / path).read_text().splitlines()), LONGER.get(str(path), LINES_MAX)
        if count > most:
            places.append(f"{path}: {count} lines, more than {most}")
    rooms = Counter(path.parent for path in modules if path.name != "__init__.py")
    for room, count in rooms.items():
        if count > MODULES_MAX and room.name != "migrations":
            places.append(f"{room}: {count} modules, more than {MODULES_MAX}")
    print("\n".join([*sorted(places), f"size: {len(places)} places"]))
    return bool(places)


if __name__ == "__main__":
    sys.exit(main())
