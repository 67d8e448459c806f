"""Identities of the ends of a job's connections, as text.

The job master is ``job-master``; a slot is ``slot-2``; a worker process is bound to its attempt as
well, ``attempt-7/slot-2``, so that one of an older attempt is recognised. Peers prove their
identity (``weir.channels.security``) before anything that they send is read.
"""

import re
from dataclasses import dataclass

from weir.ids import AttemptNumber

JOB_MASTER = "job-master"

_FORM = re.compile(
    r"(?:attempt-(?P<attempt>[1-9]\d{0,9})/)?slot-(?P<slot>0|[1-9]\d{0,9})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class SlotIdentity:
    """The identity of a slot, or of the worker process of one attempt in it."""

    slot_index: int  # Of the plan for a worker process.
    attempt: AttemptNumber | None = None  # None: the slot itself.

    def __str__(self) -> str:
        slot = f"slot-{self.slot_index}"
        return slot if self.attempt is None else f"attempt-{self.attempt}/{slot}"


def parse_identity(text: str) -> SlotIdentity | None:
    """The slot or worker process that ``text`` names; None for any other end."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    attempt = match["attempt"]
    return SlotIdentity(int(match["slot"]), AttemptNumber(int(attempt)) if attempt else None)
