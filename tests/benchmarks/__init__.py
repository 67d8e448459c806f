"""Benchmarks of Weir against the same work without it.

Every row of the table has a baseline that runs in the same process tree on the same machine minutes
apart at most, alternating with Weir, and both numbers are medians. Rows that miss their target are
printed like all others. ``python -m tests.benchmarks --help`` lists the rows.
"""

import os

# Before anything of the control plane is imported, which would choose settings of its own.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.test")
