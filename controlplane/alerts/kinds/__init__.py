"""The kinds of rules, by their names. Pure: facts in, conditions that hold out."""

from collections.abc import Mapping

from controlplane.alerts.kinds.base import Kind
from controlplane.alerts.kinds.checkpoints import CHECKPOINT_KINDS
from controlplane.alerts.kinds.jobs import JOB_KINDS

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (*CHECKPOINT_KINDS, *JOB_KINDS)}
