"""Notices: stored and read back, bounded, refused where they cannot be delivered."""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from controlplane.deliveries.notice import (
    EVIDENCE_MAX,
    LINKS_MAX,
    SUMMARY_LENGTH_MAX,
    Notice,
    bounded,
)
from tests import factories


@pytest.mark.parametrize("status", ["firing", "resolved", "test"])
def test_a_stored_notice_is_read_back_as_it_was(status: Any) -> None:
    notice = factories.notice(status=status)
    assert Notice.from_json(notice.to_json()) == notice


def test_other_data_is_no_notice() -> None:
    with pytest.raises(msgspec.ValidationError):
        Notice.from_json({**factories.notice().to_json(), "status": "gone"})


def test_a_notice_within_the_bounds_is_unchanged() -> None:
    assert bounded(factories.notice()) == factories.notice()


def test_long_and_unstorable_texts_are_cut() -> None:
    notice = bounded(
        factories.notice(
            summary="x" * 10_000,
            rule="a\0b\ud800",
            evidence=tuple((str(n), "v") for n in range(100)),
            labels={str(n): "v" for n in range(100)},
            links=tuple((str(n), f"https://x.example/{n}") for n in range(100)),
        )
    )
    assert len(notice.summary) == SUMMARY_LENGTH_MAX
    assert notice.summary.endswith("x…")
    assert notice.rule == "a\ufffdb?"
    assert len(notice.evidence) == EVIDENCE_MAX
    assert len(notice.links) == LINKS_MAX


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "/jobs/1", "https://x.example/a b", "https://x/" + "y" * 600]
)
def test_a_link_that_is_no_absolute_url_is_left_out(url: str) -> None:
    links = (("bad", url), ("good", "https://x.example/"))
    assert bounded(factories.notice(links=links)).links == links[1:]


@pytest.mark.parametrize(
    "fields",
    [
        {"alert": ""},
        {"alert": "x" * 65},
        {"alert": "a\0"},
        {"sequence": 0},
        {"status": "gone"},
        {"severity": "bad"},
        {"began_at": datetime(2026, 3, 1)},
        {"status": "resolved", "ended_at": datetime(2026, 3, 1)},
    ],
)
def test_a_notice_that_cannot_be_delivered_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        bounded(factories.notice(**fields))
