from weir.common.batch import *  # noqa: F403
from weir.common.batch import Batch, Indices, Timestamps, can_concat, concat  # noqa: F401
