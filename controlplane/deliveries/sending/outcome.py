"""The outcome of an attempt, as it is stored and judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controlplane.deliveries.machine import Meaning
from controlplane.deliveries.models import ERROR_LENGTH_MAX
from controlplane.deliveries.notice import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of an attempt; ``error`` says what went wrong, in words."""

    meaning: Meaning
    error: str = ""
    address: str = ""
    status_code: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    retry_after: str = ""  # The header.

    def without(self, secrets: tuple[str, ...]) -> "Outcome":
        """The same with stars where the endpoint repeats a secret."""

        def masked(text: str) -> str:
            for secret in secrets:
                text = text.replace(secret, "***")
            return text

        return replace(
            self,
            error=masked(self.error),
            headers={name: masked(value) for name, value in self.headers.items()},
            body=masked(self.body),
        )


def failed(error: str, *, address: str = "") -> Outcome:
    """An attempt that got no answer."""
    return Outcome(meaning=Meaning.FAILED, error=cut(error, ERROR_LENGTH_MAX), address=address)
