"""A kind of rule: its parameters and its judgement. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

import msgspec

from controlplane.alerts.facts import JobFacts

Evidence = tuple[tuple[str, str], ...]

DAY_S = 86_400
Seconds = Annotated[float, msgspec.Meta(ge=0, le=30 * DAY_S)]
Limit = Annotated[float, msgspec.Meta(gt=0, le=30 * DAY_S)]
Window = Annotated[int, msgspec.Meta(ge=10, le=7 * DAY_S)]
Times = Annotated[float, msgspec.Meta(ge=0, le=1_000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Parameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of parameters; unknown ones are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A condition that holds, about a job as a whole or a subject within it."""

    subject: str = ""
    summary: str
    evidence: Evidence = ()
    checkpoint: int | None = None  # The one that it is about: its verdict completes the summary.
    lead: str = ""  # Before the verdict, where the summary would say the same twice.


@dataclass(frozen=True, slots=True)
class Judged:
    """The conditions of one rule that hold about one job.

    ``until``: with the same facts the judgement may differ from then on; None: it does not.
    """

    holding: tuple[Holding, ...] = ()
    until: datetime | None = None

    @classmethod
    def one(
        cls,
        summary: str,
        evidence: Evidence,
        *,
        checkpoint: int | None = None,
        lead: str = "",
        until: datetime | None = None,
    ) -> Self:
        """One condition that holds, about the job as a whole."""
        holding = Holding(summary=summary, evidence=evidence, checkpoint=checkpoint, lead=lead)
        return cls((holding,), until)


QUIET = Judged()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of rule."""

    name: str
    title: str  # In lists of kinds.
    text: str  # One sentence: the condition.
    parameters: type[Parameters]
    texts: Mapping[str, str]  # Of each parameter.
    reads: tuple[str, ...]  # Sections of ``JobFacts``.
    judge: Callable[[Any, JobFacts, datetime], Judged]
    is_stored: bool = False  # Its facts are kept, so that a rule can be tried on the past.
    limits: tuple[str, ...] = ()  # Parameters of which 0 is no limit; a rule needs one of them.

    def read(self, parameters: Mapping[str, Any]) -> Parameters:
        """The parameters of a rule, with defaults for what is left out.

        Raises:
            msgspec.ValidationError: One is unknown or out of its bounds.
        """
        return msgspec.convert(parameters, self.parameters)

    def is_limitless(self, parameters: Parameters) -> bool:
        """Whether a rule with these parameters can never fire."""
        return bool(self.limits) and not any(getattr(parameters, name) for name in self.limits)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters."""
        (properties,) = msgspec.json.schema_components([self.parameters])[1].values()
        schema: dict[str, Any] = dict(properties)
        for name, text in self.texts.items():
            schema["properties"][name]["description"] = text
        return schema


def seconds(count: float) -> timedelta:
    """A duration of so many seconds."""
    return timedelta(seconds=count)


def first(moments: Iterable[datetime | None]) -> datetime | None:
    """The earliest of moments; None where there is none."""
    known = [at for at in moments if at is not None]
    return min(known) if known else None
