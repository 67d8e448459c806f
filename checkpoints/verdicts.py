"""The verdict on one checkpoint, from its rows."""

from checkpoints import verdict
from checkpoints.models import Checkpoint, GateAlignment
from checkpoints.verdict import Gate, Verdict


def of_checkpoint(checkpoint: Checkpoint) -> Verdict:
    """Why it took as long as it did."""
    rows = GateAlignment.objects.filter(checkpoint=checkpoint).values_list(
        "operator", "index", "gate", "upstream", "arrived_ms", "blocked_ms", "bytes_during"
    )
    return verdict.of([Gate(*row) for row in rows])
