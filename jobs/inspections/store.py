"""Inspections and their answers in Redis, for some minutes."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from django.core.cache import cache
from redis.exceptions import RedisError

from controlplane.base import clock
from controlplane.base.threads import Unavailable
from weir.protocol import wire
from weir.protocol.inspection import Inspected, InspectionKind

KEPT_S: Mapping[InspectionKind, int] = {
    InspectionKind.STACKS: 600,
    InspectionKind.RECORDS: 120,  # They may hold personal data.
}
# From the request to the answer: a tap's own time, the ways there and back, and a busy worker.
ANSWER_WITHIN = timedelta(seconds=15)
SAME_WITHIN_S = 5  # Another request for the same stacks gets the same inspection.
_AWAY = "inspections are kept in Redis, which is away; try again in a moment"


@dataclass(frozen=True, slots=True)
class Inspection:
    """A request to inspect some subtasks of an operator."""

    id: str
    job: str
    operator: str
    kind: str  # InspectionKind's value.
    subtasks: list[int]
    left_out: int  # Running subtasks beyond those that one request may ask.
    asked_ms: int
    asked_by: int | None  # The account's key.

    @property
    def asked_at(self) -> datetime:
        """The time of the request."""
        return clock.from_ms(self.asked_ms)

    def is_over(self, answers: Mapping[int, Inspected]) -> bool:
        """Whether no answer is waited for any more."""
        has_all = all(index in answers for index in self.subtasks)
        return has_all or clock.now() >= self.asked_at + ANSWER_WITHIN


def new_id() -> str:
    """An id that cannot be guessed."""
    return str(uuid.uuid4())


def keep(inspection: Inspection) -> None:
    """Keep an inspection until it ends by itself.

    Raises:
        Unavailable: Redis is away.
    """
    with _redis():
        cache.set(_key(inspection.id), json.dumps(asdict(inspection)), _kept_s(inspection))


def find(inspection_id: str) -> Inspection | None:
    """The inspection with this id; None: there is none, or it was long ago.

    Raises:
        Unavailable: Redis is away.
    """
    with _redis():
        text = cache.get(_key(inspection_id))
    return None if text is None else Inspection(**json.loads(text))


def share(inspection: Inspection) -> None:
    """Give the inspection to those who ask the same in the next moments.

    Raises:
        Unavailable: Redis is away.
    """
    with _redis():
        cache.set(_same_key(inspection), inspection.id, SAME_WITHIN_S)


def same(inspection: Inspection) -> Inspection | None:
    """An inspection that asked the same a moment ago.

    Raises:
        Unavailable: Redis is away.
    """
    with _redis():
        known = cache.get(_same_key(inspection))
    return None if known is None else find(known)


def answer(job_id: str, answers: Sequence[Inspected]) -> None:
    """Keep the answers of a job's driver to inspections of that job.

    Raises:
        Unavailable: Redis is away; the answers are lost.
    """
    for one in answers:
        inspection = find(one.request_id)
        if inspection is None or inspection.job != job_id or one.index not in inspection.subtasks:
            continue
        with _redis():
            text = json.dumps(wire.encode(one))
            cache.set(_key(inspection.id, one.index), text, _kept_s(inspection))


def answers(inspection: Inspection) -> dict[int, Inspected]:
    """The answers so far, by the subtask's index.

    Raises:
        Unavailable: Redis is away.
    """
    keys = {_key(inspection.id, index): index for index in inspection.subtasks}
    with _redis():
        texts = cache.get_many(keys)
    read: dict[int, Inspected] = {}
    for key, index in keys.items():
        if key in texts:
            message = wire.decode(json.loads(texts[key]))
            assert isinstance(message, Inspected)
            read[index] = message
    return read


def was_read(inspection: Inspection) -> bool:
    """Whether ``note_reading`` was called.

    Raises:
        Unavailable: Redis is away.
    """
    with _redis():
        return cache.get(_key(inspection.id, "read")) is not None


def note_reading(inspection: Inspection) -> None:
    """Note that the answers are read, and that this is audited.

    Raises:
        Unavailable: Redis is away.
    """
    with _redis():
        cache.set(_key(inspection.id, "read"), 1, _kept_s(inspection))


def _kept_s(inspection: Inspection) -> int:
    return KEPT_S[InspectionKind(inspection.kind)]


def _key(inspection_id: str, *more: object) -> str:
    return ":".join(("inspection", inspection_id, *map(str, more)))


def _same_key(inspection: Inspection) -> str:
    asked = json.dumps([inspection.job, inspection.operator, inspection.subtasks])
    return f"inspection-of:{uuid.uuid5(uuid.NAMESPACE_OID, asked)}"


@contextmanager
def _redis() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise Unavailable(_AWAY) from error
