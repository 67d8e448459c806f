"""The lineage of a checkpoint: the checkpoints it builds on, also after rollbacks.

An attempt is restored from one checkpoint, its *base*, and takes its own from there. So the
checkpoints of a job are a tree of attempts: a rollback to checkpoint 4 begins a new branch there,
and the checkpoints after 4 are *abandoned* until the job is restored from one of them. Ids are
never used twice and grow, so the line behind a checkpoint is a list of spans of ids, one per
attempt::

    attempt 1   1 2 3 4 5 6          base: nothing
    attempt 2           4 -> 7 8     base: 4     the line of 8 is 7-8, 1-4; 5 and 6 are abandoned
    attempt 3               6 -> 9   base: 6     the line of 9 is 9, 1-6; now 7 and 8 are abandoned

The bases outlive the checkpoints: they are a small file per attempt in the checkpoint storage, so
the line is known although most of the checkpoints on it have been deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from weir.ids import AttemptNumber, CheckpointId, JobId

ANY_ATTEMPT = AttemptNumber(0)  # The attempt of a span of another job.
NO_END = CheckpointId(2**62)


@dataclass(frozen=True, slots=True)
class AttemptBase:
    """The checkpoint that an attempt was restored from, stored before anything acts on it."""

    attempt: AttemptNumber
    next_id: CheckpointId  # Its own checkpoints have this id or a later one.
    restored_id: CheckpointId | None = None  # None: the beginning.
    restored_attempt: AttemptNumber | None = None  # The attempt that took that checkpoint.
    restored_job: JobId | None = None  # Another job's, for a fork; None: the job's own.
    # Whether file sinks withdraw output that they had committed beside the line.
    rewinds_output: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """The checkpoints ``first`` to ``last`` of one attempt, both included."""

    attempt: AttemptNumber
    first: CheckpointId
    last: CheckpointId

    def __contains__(self, checkpoint_id: object) -> bool:
        return isinstance(checkpoint_id, int) and self.first <= checkpoint_id <= self.last


@dataclass(frozen=True, slots=True)
class Lineage:
    """The line behind a checkpoint, itself included.

    Shape: one span per attempt, newest first. Without spans the lineage is unknown, as that of a
    job that has not begun.
    """

    spans: tuple[Span, ...] = ()

    def __contains__(self, checkpoint_id: object) -> bool:
        """Whether output committed for this checkpoint is on the line."""
        return any(checkpoint_id in span for span in self.spans)

    def holds(self, attempt: AttemptNumber, checkpoint_id: CheckpointId) -> bool:
        """Whether this checkpoint is on the line.

        The attempt is compared as well: a replaced attempt may still complete a checkpoint whose id
        its successor could have used.
        """
        return any(
            checkpoint_id in span and span.attempt in (attempt, ANY_ATTEMPT) for span in self.spans
        )


UNKNOWN = Lineage()


def lineage_of(
    attempt: AttemptNumber, last: CheckpointId, bases: Mapping[AttemptNumber, AttemptBase]
) -> Lineage:
    """The line behind checkpoint ``last`` of an attempt.

    ``last`` may be ``NO_END``: all checkpoints that the attempt takes are on its line. Where an
    attempt's base is unknown, every older checkpoint counts as on the line.
    """
    return _follow(attempt, last, bases, of_output=False)


def output_lineage_of(
    attempt: AttemptNumber, last: CheckpointId, bases: Mapping[AttemptNumber, AttemptBase]
) -> Lineage:
    """The checkpoints whose committed output stays when the job is restored from this one.

    That is the line behind the checkpoint, and all output that existed at the last rollback on this
    line that kept the output. Which withdrawn output to put back is told by ``lineage_of``, not
    here.
    """
    return _follow(attempt, last, bases, of_output=True)


def _follow(
    attempt: AttemptNumber,
    last: CheckpointId,
    bases: Mapping[AttemptNumber, AttemptBase],
    *,
    of_output: bool,
) -> Lineage:
    spans: list[Span] = []
    here: AttemptNumber | None = attempt
    while here is not None:
        base = bases.get(here)
        if base is None:
            spans.append(Span(ANY_ATTEMPT, CheckpointId(1), last))
            break
        if base.next_id <= last:
            spans.append(Span(here, base.next_id, last))
        if base.restored_id is None:
            break
        if of_output and not base.rewinds_output:
            there = min(last, CheckpointId(base.next_id - 1))
            spans.append(Span(ANY_ATTEMPT, CheckpointId(1), there))
            break
        last = base.restored_id
        if base.restored_job is not None:
            spans.append(Span(ANY_ATTEMPT, CheckpointId(1), last))
            break
        if base.restored_attempt is not None and base.restored_attempt >= here:
            # No attempt is restored from a later one's checkpoint: the storage was edited by hand.
            spans.append(Span(ANY_ATTEMPT, CheckpointId(1), last))
            break
        here = base.restored_attempt
    return Lineage(tuple(spans))
