"""Words for snapshots whose barriers overtook records, and for the records. Pure."""

from checkpoints.models import AlignmentOutcome, Checkpoint
from controlplane.base.formatting import duration, size
from weir.protocol.messages import Switch

PERSISTED = (
    "Records that barriers overtook, persisted in the checkpoint; unaligned checkpoints only"
)

_WHERE = {
    Switch.INPUT: "It began aligned. The aligned checkpoint timeout was over before all of its "
    "barriers had arrived",
    Switch.OUTPUT: "It began aligned. The aligned checkpoint timeout was over while its own "
    "barrier waited behind records at an output",
    Switch.UPSTREAM: "It began aligned. Its barrier had overtaken records upstream, where the "
    "aligned checkpoint timeout was over",
}


def outcome_text(checkpoint: Checkpoint) -> str:
    """The way in which a checkpoint's barriers went; empty: no barrier overtook records."""
    match checkpoint.alignment:
        case AlignmentOutcome.ALIGNED:
            return ""
        case AlignmentOutcome.UNALIGNED:
            return "unaligned"
        case AlignmentOutcome.TIMED_OUT:
            return subtask_text(unaligned=True, switched_ms=checkpoint.switched_ms)


def outcome_help(checkpoint: Checkpoint) -> str:
    """The same as a sentence."""
    counted = f"{checkpoint.unaligned_count:,} of {checkpoint.subtask_count:,} subtasks"
    match checkpoint.alignment:
        case AlignmentOutcome.ALIGNED:
            return ""
        case AlignmentOutcome.UNALIGNED:
            return f"Barriers overtook records from the start, at {counted}"
        case AlignmentOutcome.TIMED_OUT:
            return (
                f"It began aligned; the aligned checkpoint timeout was over, and {counted} became "
                "unaligned. The time is that of the first one, after the trigger"
            )


def subtask_text(*, unaligned: bool, switched_ms: float | None) -> str:
    """The way in which a subtask's snapshot was taken; empty: it was aligned."""
    if not unaligned:
        return ""
    return "unaligned" if switched_ms is None else f"unaligned after {duration(switched_ms)}"


def subtask_help(switched: str) -> str:
    """The reason why a subtask's snapshot is unaligned."""
    if switched not in set(Switch):
        return "Unaligned from the start: its barriers overtook records, which are persisted"
    return _WHERE[Switch(switched)]


def at_outputs(output_bytes: int) -> str:
    """The part of the persisted data that waited at outputs; empty: none did."""
    return f"{size(output_bytes)} at outputs" if output_bytes else ""
