"""Refusals of services: a stable code, an HTTP status, a sentence that says what to do.

Services raise these; ``controlplane.base.problems`` renders them for the API (RFC 9457).
"""

import errno
from typing import Any, ClassVar, TypeVar

from django.db.models import Model, QuerySet

from controlplane.base.lookups import only

T = TypeVar("T", bound=Model)


class Refusal(Exception):
    """A request that cannot be carried out as it is. Nothing was changed."""

    code: ClassVar[str] = "refused"
    status: ClassVar[int] = 400
    title: ClassVar[str] = "The request was refused"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra  # Further members of the problem document.


class NotFound(Refusal):
    """The requested thing does not exist, or not for this account."""

    code = "not_found"
    status = 404
    title = "Not found"


def existing(rows: QuerySet[T], said: str) -> T:
    """The row that a unique key selects.

    Raises:
        NotFound: There is none; ``said`` is the refusal's sentence.
    """
    row = only(rows)
    if row is None:
        raise NotFound(said)
    return row


class Invalid(Refusal):
    """The request lacks something or has it wrong; ``errors`` names the fields."""

    code = "invalid"
    status = 400
    title = "Invalid request"


class Problems:
    """All problems of a request by field, so that one response names them together."""

    def __init__(self) -> None:
        self.by_field: dict[str, list[str]] = {}

    def add(self, field: str, problem: str) -> None:
        """Note a problem of a field."""
        self.by_field.setdefault(field, []).append(problem)

    def refuse(self, said: str) -> None:
        """Refuse the request if it has problems.

        Raises:
            Invalid: There are some; the detail begins with ``said``.
        """
        if self.by_field:
            fields = ", ".join(sorted(self.by_field))
            raise Invalid(f"{said} like this; see {fields}", errors=self.by_field)


class Unauthorized(Refusal):
    """The request comes from no known account."""

    code = "not_authenticated"
    status = 401
    title = "Authentication required"


class Forbidden(Refusal):
    """The account's role does not allow the request."""

    code = "permission_denied"
    status = 403
    title = "Not allowed"


class WrongState(Refusal):
    """The job's ``state`` does not allow the request; ``allowed`` names the states that do."""

    code = "wrong_state"
    status = 409
    title = "Not possible in the job's state"


class Busy(Refusal):
    """Another operation on the job is under way; ``operation`` names it."""

    code = "operation_in_progress"
    status = 409
    title = "Another operation is under way"


class DriverFenced(Refusal):
    """The request comes from a driver that is not the job's newest, or whose job is over."""

    code = "fenced"
    status = 409
    title = "Driver fenced"


class KeyReused(Refusal):
    """An idempotency key was used again with another request."""

    code = "idempotency_key_reused"
    status = 422
    title = "Idempotency key reused"


class TooBusy(Refusal):
    """Too many requests of the kind are in hand; the same request can succeed a moment later."""

    code = "too_busy"
    status = 503
    title = "Too busy"


class TooSlow(Refusal):
    """The body did not come in time."""

    code = "too_slow"
    status = 408
    title = "Too slow"


class TooLarge(Refusal):
    """The body is larger than the limit."""

    code = "too_large"
    status = 413
    title = "Too large"


class DiskFull(Refusal):
    """A disk or a server's memory is full; nothing was changed."""

    code = "disk_full"
    status = 507
    title = "No space left"


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a file system, or the account's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
