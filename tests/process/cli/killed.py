"""A driver on the in-process cluster that a fault kills; apart from its test, to be forked warm."""

import os
import sys
from collections.abc import Sequence
from unittest.mock import patch

import pandas as pd  # noqa: F401 - Arrow imports it with the first record.

import weir.cli.run
import weir.spark.submit  # noqa: F401
from weir import fault_points
from weir.__main__ import main


def drive(command: Sequence[str], point: str, hit: int) -> None:
    """Be ``weir`` with these arguments, and die at a hit of a point."""
    fault_points.arm([fault_points.Fault(point, "kill", after=hit)])
    with (
        open(os.devnull, "w") as nothing,
        patch.multiple(sys, argv=["weir", *command], stderr=nothing),
    ):
        sys.exit(main())
