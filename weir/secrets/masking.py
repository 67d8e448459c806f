"""Masking: the values of secrets, in the forms in which they usually appear, become ``***``.

Forms are the value itself, its long lines, and the value URL-quoted, in base64 (also inside of a
longer encoded text), escaped as in JSON and as in a Python literal. This guards against accidents,
such as a value in an error's message. It does not guard against code that wants to tell a value,
which could encode it in any other way.

Values shorter than ``LENGTH_MIN`` characters are not masked: they would occur in any text.
"""

import dataclasses
import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

MASK = "***"
LENGTH_MIN = 4
LINE_LENGTH_MIN = 12  # Of a value's lines, so that a printed key is masked line by line.
INNER_LENGTH_MIN = 8  # Of base64 whose ends depend on what stands beside the value.
# Fields of messages that hold text for people; identifiers and state are left as they are.
TEXT_FIELDS = frozenset({"cause", "details", "note", "reason", "stack", "text"})

_T = TypeVar("_T")


class Masker:
    """Replaces the values of some secrets in texts, nested data, messages and streams."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= LENGTH_MIN}
        # The longest first: a form may begin with another one.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = _pattern(self._forms)

    def __bool__(self) -> bool:
        """Whether there is a value to mask."""
        return self._pattern is not None

    def text(self, text: str) -> str:
        """The text with the values masked."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def data(self, value: Any) -> Any:
        """A value of JSON with all texts in it masked; the keys of objects are Weir's own."""
        if self._pattern is None:
            return value
        if type(value) is str:  # An enum is a name of the protocol's, though it is a text as well.
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.data(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.data(inner) for inner in value)
        return value

    def message(self, message: _T) -> _T:
        """A message, a frozen dataclass, with its own ``TEXT_FIELDS`` masked."""
        if self._pattern is None:
            return message
        cls: Any = type(message)
        masked = {name: self.data(getattr(message, name)) for name in _text_fields(cls)}
        if not masked:
            return message
        return dataclasses.replace(message, **masked)  # type: ignore[type-var]

    def stream(self) -> "StreamMasker":
        """A masker of a stream of bytes, which arrives in pieces."""
        return StreamMasker([form.encode() for form in self._forms])


class StreamMasker:
    """Masks a stream of bytes; an end that may be the beginning of a value is held back."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = sorted(forms, key=len, reverse=True)
        self._firsts = frozenset(form[0] for form in self._forms)
        self._longest = max(map(len, self._forms), default=0)
        self._pattern = re.compile(b"|".join(map(re.escape, self._forms))) if self._forms else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on now."""
        if self._pattern is None:
            return data
        data = self._held + data
        passed, at = [], 0
        end = self._open_end(data, at)
        while (match := self._pattern.search(data, at)) is not None and match.start() < end:
            passed += [data[at : match.start()], MASK.encode()]
            at = match.end()
            end = self._open_end(data, at)
        passed.append(data[at:end])
        self._held = data[end:]
        return b"".join(passed)

    def flush(self) -> bytes:
        """The bytes that were held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held if self._pattern is None else self._pattern.sub(MASK.encode(), held)

    def _open_end(self, data: bytes, at: int) -> int:
        """The place from which on more bytes could make a value, or a longer one."""
        for place in range(max(at, len(data) - self._longest + 1), len(data)):
            if data[place] in self._firsts:
                rest = data[place:]
                if any(len(form) > len(rest) and form.startswith(rest) for form in self._forms):
                    return place
        return len(data)


@cache
def _text_fields(message: Hashable) -> frozenset[str]:
    return TEXT_FIELDS.intersection(field.name for field in dataclasses.fields(message))  # type: ignore[arg-type]


def _pattern(forms: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, forms))) if forms else None


def _forms(value: str) -> Iterator[str]:
    """The forms of a value; those of a short one are none."""
    if len(value) < LENGTH_MIN:
        return
    yield value
    stripped = value.strip()
    if len(stripped) >= LENGTH_MIN:
        yield stripped
    for line in value.splitlines():
        if len(line.strip()) >= LINE_LENGTH_MIN:
            yield line.strip()
    for quoted in (quote(value), quote(value, safe=""), quote_plus(value)):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quoted)
    for ascii_only in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    yield repr(value)[1:-1]
    yield from _encoded(value.encode())


def _encoded(value: bytes) -> Iterator[str]:
    """The base64 of a value, alone and, as far as it depends on nothing else, inside of more."""
    for encode in (b64encode, urlsafe_b64encode):
        whole = encode(value).decode()
        yield whole
        yield whole.rstrip("=")
        for before in range(3):
            text = encode(bytes(before) + value).decode().rstrip("=")
            # Each character has six bits: those at the ends are shared with the bytes beside.
            first = -(-before * 8 // 6)
            last = (before + len(value)) * 8 // 6
            if last - first >= INNER_LENGTH_MIN:
                yield text[first:last]
