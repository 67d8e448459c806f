"""One judgement of the last checkpoints, which stays put while their verdicts change. Pure.

A single checkpoint may be quick by chance, or slow for a reason of its own. Over ten the culprit
that comes back is the one to look at. Those that a planned end aborted say nothing and do not
count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkpoints.verdict.result import Cause, Verdict
from controlplane.base.formatting import number

LAST = 10  # Checkpoints.
LAST_MIN = 3  # Fewer are judged one by one.
COMES_BACK = 2  # A culprit that was named once may be chance.
_TROUBLED = ("warn", "bad")

# The words for what a culprit did, of several checkpoints.
_DID: Mapping[Cause, str] = {
    Cause.STUCK: "was stuck in a call",
    Cause.FROZEN: "was frozen",
    Cause.STARVED: "had no processor",
    Cause.LOCKED: "waited for the interpreter lock",
    Cause.BUSY: "was slow",
    Cause.SKEWED: "was slow, with most of the records,",
    Cause.CHANNEL: "sent barriers that were late",
    Cause.DRIVER: "was late or lost",
    Cause.COPYING: "copied its state for long",
    Cause.STORAGE: "was slow",
    Cause.SINK: "waited for the storage of its sink",
    Cause.LARGE: "had much state to write",
}


@dataclass(frozen=True, slots=True)
class Told:
    """The part of a settled checkpoint's verdict that a diagnosis needs."""

    tone: str
    cause: Cause | None
    culprit: str  # The first one; empty: none was named.

    @classmethod
    def by(cls, verdict: Verdict) -> "Told":
        """The part of this verdict."""
        return cls(verdict.tone, verdict.cause, verdict.culprits[0] if verdict.culprits else "")

    @property
    def group(self) -> tuple[Cause | None, str]:
        """The culprit as it comes back: one of several subtasks of a chain, or the storage."""
        if self.cause is Cause.STORAGE:
            return self.cause, ""
        chain, _, index = self.culprit.rpartition("-")
        return self.cause, chain if index.isdigit() else self.culprit


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The culprit that comes back in the last checkpoints."""

    tone: str
    headline: str


def diagnose(last: Sequence[Told]) -> Diagnosis | None:
    """The diagnosis of the last settled checkpoints, the newest first; None: they are too few."""
    counted = [told for told in last if told.tone != "idle"][:LAST]
    if len(counted) < LAST_MIN:
        return None
    of_last = f"of the last {number(len(counted))} checkpoints"
    troubled = [told for told in counted if told.tone in _TROUBLED]
    if not troubled:
        return Diagnosis("good", f"All {of_last.removeprefix('of ')} were well.")
    tone = "bad" if any(told.tone == "bad" for told in troubled) else "warn"
    if len(troubled) == 1:
        return Diagnosis("good", f"1 {of_last} was slow or failed, the others were well.")
    groups: dict[tuple[Cause | None, str], list[Told]] = {}
    for told in troubled:
        groups.setdefault(told.group, []).append(told)
    # Of equals the one that came first, so the most recent.
    worst = max(groups.values(), key=len)
    cause = worst[0].cause
    if cause is None or len(worst) < COMES_BACK:
        text = f"{number(len(troubled))} {of_last} were slow or failed"
        return Diagnosis(tone, f"{text}, and no culprit comes back.")
    text = f"{_subject(worst)} {_DID[cause]} in {number(len(worst))} {of_last}"
    rest = len(troubled) - len(worst)
    if rest:
        text += f"; {number(rest)} more {'were' if rest > 1 else 'was'} slow or failed otherwise"
    return Diagnosis(tone, f"{text}.")


def _subject(group: Sequence[Told]) -> str:
    cause, name = group[0].group
    if cause is Cause.STORAGE:
        return "The checkpoint storage"
    if not name or name == "driver":
        return "The driver"
    is_one = len({told.culprit for told in group}) == 1
    return group[0].culprit if is_one else name
