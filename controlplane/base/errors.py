"""What a service refuses: a stable code, an HTTP status, a sentence that says what to do.

Services raise these; ``controlplane.base.problems`` renders them for the API (RFC 9457).
"""

from typing import Any, ClassVar


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
    """There is no such thing, or not for whoever asks."""

    code = "not_found"
    status = 404
    title = "Not found"


class Invalid(Refusal):
    """The request does not say what it has to; ``errors`` names the fields."""

    code = "invalid"
    status = 400
    title = "Invalid request"


class Problems:
    """What is wrong with a request, by field, so that one answer names it all."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def add(self, field: str, problem: str) -> None:
        """Note one."""
        self.found.setdefault(field, []).append(problem)

    def refuse(self, said: str) -> None:
        """Refuse the request if there are any.

        Raises:
            Invalid: Its detail begins with ``said``.
        """
        if self.found:
            fields = ", ".join(sorted(self.found))
            raise Invalid(f"{said} like this; see {fields}", errors=self.found)


class Unauthorized(Refusal):
    """Nobody known asks."""

    code = "not_authenticated"
    status = 401
    title = "Authentication needed"


class Forbidden(Refusal):
    """Whoever asks has not the role for it."""

    code = "permission_denied"
    status = 403
    title = "Not allowed"


class WrongState(Refusal):
    """The job's state does not allow it; ``state`` and ``allowed`` say what is and what would."""

    code = "wrong_state"
    status = 409
    title = "Not in this state"


class Busy(Refusal):
    """Another operation on the job is under way; ``operation`` names it."""

    code = "operation_in_progress"
    status = 409
    title = "Another operation is under way"


class DriverFenced(Refusal):
    """A driver speaks that is not the job's newest, or whose job is over."""

    code = "fenced"
    status = 409
    title = "DriverFenced"


class KeyReused(Refusal):
    """An idempotency key came again with another request."""

    code = "idempotency_key_reused"
    status = 422
    title = "Idempotency key reused"


class TooLarge(Refusal):
    """The body is larger than what is taken."""

    code = "too_large"
    status = 413
    title = "Too large"
