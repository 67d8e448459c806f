"""The names of uploaded pipelines in a verdict, in place of their stored files. Pure.

An upload is stored under the digest of its content, so frames and locations of its code say
``…/uploads/5f0c….py``. Its users know it as ``orders.py``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from checkpoints.verdict.result import Verdict

_STORED = re.compile(r"(?:[^\s\"'(]*[/\\])?\b(?P<digest>[0-9a-f]{64})\.py\b")


def stored_digests(verdict: Verdict) -> set[str]:
    """The digests of stored uploads that a verdict's texts name."""
    texts = (verdict.headline, *verdict.because, *verdict.advice, verdict.stack)
    return {stored["digest"] for text in texts for stored in _STORED.finditer(text)}


def with_names(verdict: Verdict, names: Mapping[str, str]) -> Verdict:
    """The verdict with the file names of uploads, by their digests; unknown ones stay."""

    def named(text: str) -> str:
        return _STORED.sub(lambda stored: names.get(stored["digest"], stored[0]), text)

    return replace(
        verdict,
        headline=named(verdict.headline),
        because=tuple(map(named, verdict.because)),
        advice=tuple(map(named, verdict.advice)),
        stack=named(verdict.stack),
    )
