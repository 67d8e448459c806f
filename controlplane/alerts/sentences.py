"""The words of an alert about a checkpoint: those of its verdict."""

import logging
from dataclasses import replace

from django.db import transaction

from checkpoints.models import Checkpoint
from checkpoints.verdict.queries import of_checkpoint
from checkpoints.verdict.result import Verdict
from controlplane.alerts.kinds.base import Holding

logger = logging.getLogger(__name__)

REASONS_MAX = 5  # Of evidence from a verdict.


class Sentences:
    """The verdicts of one round; each checkpoint is judged once."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, int], Verdict | None] = {}

    def worded(self, job_id: str, holding: Holding) -> Holding:
        """The condition in the words of its checkpoint's verdict, if it is about one."""
        if holding.checkpoint is None:
            return holding
        key = job_id, holding.checkpoint
        if key not in self._verdicts:
            self._verdicts[key] = _verdict(*key)
        verdict = self._verdicts[key]
        if verdict is None:
            return holding
        because = [("because", text) for text in verdict.because[:REASONS_MAX]]
        advice = [("advice", text) for text in verdict.advice[:1]]
        return replace(
            holding,
            summary=f"{holding.lead or holding.summary} {verdict.headline}",
            evidence=(*holding.evidence, *because, *advice),
        )


def _verdict(job_id: str, number: int) -> Verdict | None:
    checkpoint = Checkpoint.objects.filter(job=job_id, number=number).first()
    if checkpoint is None:
        return None
    try:
        with transaction.atomic():
            return of_checkpoint(checkpoint)
    except Exception:  # Odd rows must not hold an alert up; its own sentence says enough.
        logger.exception("there is no verdict on checkpoint %d of %s", number, job_id)
        return None
