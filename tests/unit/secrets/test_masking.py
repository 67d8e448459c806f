"""Masking of values: their forms, and streams that arrive in pieces."""

import json
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.secrets.masking import LENGTH_MIN, MASK, Masker

VALUE = 'p@ss "wörd"/%?\\ x'
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nshort\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        quote(VALUE),
        quote(VALUE, safe=""),
        quote_plus(VALUE),
        quote(VALUE, safe="").lower(),
        json.dumps(VALUE)[1:-1],
        json.dumps(VALUE, ensure_ascii=False)[1:-1],
        repr(VALUE)[1:-1],
        b64encode(VALUE.encode()).decode(),
        urlsafe_b64encode(VALUE.encode()).decode().rstrip("="),
    ],
)
def test_each_usual_form_of_a_value_is_masked(form: str) -> None:
    assert Masker([VALUE]).text(f"before {form} after") == f"before {MASK} after"


@pytest.mark.parametrize("before", ["", "u", "us", "usr", "user:"])
def test_a_value_inside_of_longer_base64_is_masked(before: str) -> None:
    """As in a header of basic authentication."""
    value = "correct horse battery"
    encoded = b64encode(f"{before}{value}!".encode()).decode()
    masked = Masker([value]).text(encoded)
    assert MASK in masked
    assert len(masked) < 20


def test_a_value_of_several_lines_is_masked_line_by_line() -> None:
    masker = Masker([PEM])
    assert masker.text(PEM) == MASK
    printed = "\n".join(f"| {line}" for line in PEM.splitlines())
    assert "MIIEvQ" not in masker.text(printed)


def test_a_short_value_and_no_value_mask_nothing() -> None:
    assert not Masker()
    assert not Masker(["x" * (LENGTH_MIN - 1), ""])
    assert Masker(["abc"]).text("abc") == "abc"
    assert Masker(["abc"]).stream().feed(b"abc") == b"abc"


def test_of_values_that_begin_alike_the_longest_is_masked_whole() -> None:
    masker = Masker(["secret", "secret-and-more"])
    assert masker.text("secret-and-more secret") == f"{MASK} {MASK}"


def test_nested_data_is_masked_and_its_keys_are_kept() -> None:
    masker = Masker(["hunter22"])
    given: Any = {"hunter22": ["a hunter22", ("hunter22", 7, None, True)]}
    assert masker.data(given) == {"hunter22": [f"a {MASK}", (MASK, 7, None, True)]}


@dataclass(frozen=True)
class Message:
    cause: str
    uid: str
    details: dict[str, Any] = field(default_factory=dict)


def test_texts_of_a_message_are_masked_and_identifiers_are_kept() -> None:
    masked = Masker(["hunter22"]).message(Message("no hunter22", "hunter22", {"a": "hunter22"}))
    assert masked == Message(f"no {MASK}", "hunter22", {"a": MASK})


_PARTS = st.sampled_from(["secret", "secret-and-more", "sec", "secre", "-and", "t", "x", "\n", "ö"])


@given(st.lists(_PARTS, max_size=12), st.lists(st.integers(1, 7), min_size=1, max_size=40))
def test_a_stream_in_any_pieces_is_masked_as_its_whole_text(
    parts: list[str], sizes: list[int]
) -> None:
    masker = Masker(["secret", "secret-and-more"])
    text = "".join(parts)
    data, stream, passed, at = text.encode(), masker.stream(), b"", 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        passed += stream.feed(data[at : at + size])
        at += size
    assert (passed + stream.flush()).decode() == masker.text(text)


def test_a_stream_holds_back_no_more_than_the_beginning_of_a_value() -> None:
    stream = Masker(["secret"]).stream()
    assert stream.feed(b"a line\n") == b"a line\n"
    assert stream.feed(b"a line with sec") == b"a line with "
    assert stream.feed(b"ond thoughts\n") == b"second thoughts\n"
