"""Rates, as settings and throttles have them: so many per second, minute, hour or day. Pure."""

import re
from dataclasses import dataclass
from typing import Self

PERIODS_S = {
    **dict.fromkeys(("s", "sec"), 1),
    **dict.fromkeys(("m", "min"), 60),
    **dict.fromkeys(("h", "hour"), 3_600),
    **dict.fromkeys(("d", "day"), 86_400),
}

_RATE = re.compile(r"([1-9][0-9]{0,8})/([a-z]+)")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` in ``period_s`` seconds."""

    count: int
    period_s: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """A rate such as ``20/min``; the periods are those of REST framework.

        Raises:
            ValueError: The text is no rate.
        """
        match = _RATE.fullmatch(text)
        if match is None or match[2] not in PERIODS_S:
            raise ValueError(f"{text!r} is no rate; give for example 20/min or 50/hour")
        return cls(int(match[1]), PERIODS_S[match[2]])
