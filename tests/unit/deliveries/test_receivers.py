"""Each kind's shape of a notice, held against the schema that its receiver publishes."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from standardwebhooks import Webhook
from standardwebhooks.exceptions import WebhookVerificationError

from controlplane.deliveries.notice import SEVERITIES, STATUSES, Notice, bounded
from controlplane.deliveries.receivers import KINDS, signing
from controlplane.deliveries.receivers.base import HttpRequest, Mail, Message, Target
from tests import factories

SCHEMAS = Path(__file__).parent / "schemas"
SECRET, OLDER = signing.new_secret(), signing.new_secret()
TARGET = Target(
    url="https://hooks.example/weir?x=1",
    secrets=(SECRET,),
    routing_key="e93facc04764012d7bfb002500d5d1a6",
    recipients=("oncall@example.com",),
)

_formats = FormatChecker(formats=())


@_formats.checks("date-time", raises=ValueError)
def _is_moment(text: object) -> bool:
    return datetime.fromisoformat(str(text)).tzinfo is not None


@_formats.checks("uri", raises=ValueError)
def _is_uri(text: object) -> bool:
    return bool(urlsplit(str(text)).scheme)


@_formats.checks("uri-reference", raises=ValueError)
def _is_reference(text: object) -> bool:
    return urlsplit(str(text)) is not None


def message(notice: Notice, **changed: Any) -> Message:
    fields = {
        "id": "msg_1",
        "notice": notice,
        "sent_at": datetime.now(UTC),
        "source": "https://weir.example",
    }
    return Message(**{**fields, **changed})


def posted(kind: str, notice: Notice, target: Target = TARGET) -> HttpRequest:
    request = KINDS[kind].render(message(notice), target)
    assert isinstance(request, HttpRequest)
    return request


def document(kind: str, notice: Notice) -> Any:
    return json.loads(posted(kind, notice).body)


def check(kind: str, notice: Notice) -> None:
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    Draft202012Validator(schema, format_checker=_formats).validate(document(kind, notice))


KINDS_WITH_SCHEMA = sorted(path.stem for path in SCHEMAS.glob("*.json"))


def test_every_shape_but_our_own_and_mail_has_a_schema() -> None:
    assert set(KINDS) - set(KINDS_WITH_SCHEMA) == {"webhook", "email"}


@pytest.mark.parametrize("kind", KINDS_WITH_SCHEMA)
@pytest.mark.parametrize("status", STATUSES)
def test_a_notice_fits_the_published_schema(kind: str, status: Any) -> None:
    check(kind, factories.notice(status=status))
    check(kind, factories.notice(status=status, job=None, job_name=None, evidence=(), links=()))


texts = st.text(max_size=60) | st.text(alphabet='<>&|*_[]()\\`"\n\0\ud800é😀', max_size=700)


@given(
    st.sampled_from(KINDS_WITH_SCHEMA),
    st.sampled_from(STATUSES),
    st.sampled_from(SEVERITIES),
    st.text(min_size=1, alphabet="<>&|x😀\n", max_size=300),
    texts,
    st.lists(st.tuples(texts, texts), max_size=20),
    st.dictionaries(texts, texts, max_size=30),
)
def test_no_text_of_user_code_breaks_a_shape(
    kind: str, status: Any, severity: Any, rule: str, text: str, evidence: Any, labels: Any
) -> None:
    notice = factories.notice(
        status=status,
        severity=severity,
        rule=rule,
        summary=text,
        evidence=tuple(evidence),
        labels=labels,
        job_name=text or None,
    )
    check(kind, bounded(notice))


def headers(request: HttpRequest) -> dict[str, str]:
    return dict(request.headers)


@pytest.mark.parametrize("kind", ["webhook", "cloudevents"])
def test_the_public_library_verifies_the_signature(kind: str) -> None:
    request = posted(kind, factories.notice(summary="Größe & 48 s"))
    assert Webhook(SECRET).verify(request.body, headers(request)) == json.loads(request.body)
    assert headers(request)["webhook-id"] == "msg_1"
    with pytest.raises(WebhookVerificationError):
        Webhook(OLDER).verify(request.body, headers(request))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body.replace(b"48", b"49"), headers(request))


def test_during_a_rotation_each_of_the_two_secrets_verifies() -> None:
    request = posted("webhook", factories.notice(), Target(url="x", secrets=(SECRET, OLDER)))
    for secret in (SECRET, OLDER):
        Webhook(secret).verify(request.body, headers(request))


def test_a_retry_differs_in_its_time_and_signature_alone() -> None:
    notice, now = factories.notice(), datetime.now(UTC)
    first, second = (
        KINDS["webhook"].render(message(notice, sent_at=at), TARGET)
        for at in (now, now + timedelta(hours=2))
    )
    assert isinstance(first, HttpRequest)
    assert isinstance(second, HttpRequest)
    assert first.body == second.body
    differing = {name for name in first.headers if first.headers[name] != second.headers[name]}
    assert differing == {"webhook-timestamp", "webhook-signature"}


def test_our_own_document() -> None:
    assert document("webhook", factories.notice(status="resolved", sequence=2)) == {
        "type": "weir.alert.resolved",
        "timestamp": "2026-03-01T12:03:00.250Z",
        "data": {
            "alert": "8f14e45f-ceea-467f-a3b2-5b7c1a0d9e11",
            "sequence": 2,
            "status": "resolved",
            "severity": "warning",
            "rule": "Slow checkpoints",
            "summary": "Checkpoint 41 took 48 s: hourly-0 was busy & its barrier waited.",
            "evidence": [
                {"name": "duration", "value": "48 s"},
                {"name": "longest start delay", "value": "44 s"},
            ],
            "labels": {"team": "flights"},
            "links": [
                {
                    "text": "Checkpoint 41",
                    "url": "https://weir.example/jobs/flights-1/checkpoints/41",
                }
            ],
            "job": "flights-1",
            "job_name": "flights",
            "began_at": "2026-03-01T12:00:00.250Z",
            "ended_at": "2026-03-01T12:03:00.250Z",
        },
    }


@pytest.mark.parametrize("kind", ["alertmanager", "alertmanager_webhook"])
def test_an_alert_is_resolved_by_the_labels_that_it_began_with(kind: str) -> None:
    def labels(status: Any) -> Any:
        made = document(kind, factories.notice(status=status))
        return (made if kind == "alertmanager" else made["alerts"])[0]["labels"]

    assert labels("firing") == labels("resolved")
    assert labels("firing") == {
        "alertname": "Slow checkpoints",
        "severity": "warning",
        "weir_alert": "8f14e45f-ceea-467f-a3b2-5b7c1a0d9e11",
        "weir_job": "flights-1",
        "weir_job_name": "flights",
        "label_team": "flights",
    }


def test_an_alertmanager_keeps_an_alert_until_weir_ends_it() -> None:
    (firing,) = document("alertmanager", factories.notice())
    assert firing["endsAt"] == "2027-03-01T12:00:00.250Z"
    (resolved,) = document("alertmanager", factories.notice(status="resolved"))
    assert resolved["endsAt"] == "2026-03-01T12:03:00.250Z"


@pytest.mark.parametrize(
    "url", ["https://am.example", "https://am.example/", "https://am.example/api/v2/alerts"]
)
def test_an_alertmanager_is_reached_by_its_api_whichever_address_is_given(url: str) -> None:
    request = posted("alertmanager", factories.notice(), Target(url=url))
    assert request.url == "https://am.example/api/v2/alerts"


def test_pagerduty_triggers_and_resolves_one_incident() -> None:
    firing = document("pagerduty", factories.notice())
    resolved = document("pagerduty", factories.notice(status="resolved"))
    assert (firing["event_action"], resolved["event_action"]) == ("trigger", "resolve")
    assert firing["dedup_key"] == resolved["dedup_key"]
    assert firing["payload"]["custom_details"]["duration"] == "48 s"


def test_slack_reads_no_control_characters_in_texts() -> None:
    notice = factories.notice(
        summary="<!channel> a&b", links=(("a|b>c", "https://x.example/?a&b"),)
    )
    text = posted("slack", notice).body.decode()
    assert "<!channel>" not in text
    assert "&lt;!channel&gt; a&amp;b" in text
    assert "<https://x.example/?a&amp;b|a¦b&gt;c>" in text


def test_mails_of_one_alert_are_a_thread_and_no_text_adds_a_header() -> None:
    hostile = factories.notice(rule="x\r\nBcc: all@example.com", alert="a b\n<c>")
    first = KINDS["email"].render(message(hostile), TARGET)
    second = KINDS["email"].render(message(hostile, id="msg_2"), TARGET)
    assert isinstance(first, Mail)
    assert isinstance(second, Mail)
    assert "\n" not in first.subject
    assert "\n" not in "".join(first.headers.values())
    assert first.headers["References"] == second.headers["References"]
    assert first.headers["Message-ID"] == "<msg_1@weir.example>"
    assert first.headers["Message-ID"] != second.headers["Message-ID"]
    for part in ("48 s", "longest start delay: 44 s", "began: 2026-03-01", "checkpoints/41"):
        assert part in first.text


@pytest.mark.parametrize("kind", ["webhook", "cloudevents", "alertmanager", "alertmanager_webhook"])
def test_an_authorization_is_sent_along(kind: str) -> None:
    request = posted(kind, factories.notice(), Target(url="https://x", authorization="Bearer x"))
    assert request.headers["Authorization"] == "Bearer x"
    assert "Authorization" not in posted(kind, factories.notice()).headers


@pytest.mark.parametrize(
    ("secret", "is_one"),
    [
        pytest.param(signing.new_secret(), True, id="new"),
        ("whsec_" + "A" * 32, True),
        ("whsec_" + "A" * 28, False),
        ("whsec_" + "A" * 88, False),
        ("A" * 32, False),
        ("whsec_" + "é" * 32, False),
        ("whsec_!!!!", False),
    ],
)
def test_a_signing_secret_has_24_to_64_bytes(secret: str, is_one: bool) -> None:
    assert signing.is_secret(secret) is is_one
