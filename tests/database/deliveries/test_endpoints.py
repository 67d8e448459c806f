"""Endpoints: checked when saved, sealed, changed, rotated and deleted."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from pytest_django.fixtures import Settings

from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import Invalid, NotFound
from controlplane.deliveries import endpoints, sealing
from controlplane.deliveries.errors import NameTaken
from controlplane.deliveries.machine import Meaning
from controlplane.deliveries.models import Endpoint
from controlplane.deliveries.receivers import KINDS, signing
from controlplane.deliveries.sending import addresses
from controlplane.deliveries.sending.outcome import Outcome
from controlplane.secrets.encryption import Unreadable
from tests import factories

pytestmark = pytest.mark.django_db

URL = "https://8.8.8.8/hook?token=a-word-of-ours"
GIVEN: dict[str, dict[str, Any]] = {
    "webhook": {"url": URL},
    "cloudevents": {"url": URL},
    "alertmanager": {"url": URL, "authorization": "Bearer a-word-of-theirs"},
    "alertmanager_webhook": {"url": URL},
    "pagerduty": {"url": URL, "routing_key": "0123456789"},
    "slack": {"url": URL},
    "teams": {"url": URL},
    "email": {"recipients": ["oncall@example.com"]},
}


def made(kind: str = "webhook", **given: Any) -> Endpoint:
    endpoint, _ = endpoints.create(None, kind, {"name": kind, **GIVEN[kind], **given})
    return endpoint


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_stored_with_its_secrets_sealed(kind: str, settings: Settings) -> None:
    settings.EMAIL_HOST = "mail.example"
    endpoint, secret = endpoints.create(None, kind, {"name": kind, **GIVEN[kind]})
    assert (secret is not None) is (kind in ("webhook", "cloudevents"))
    row = Endpoint.objects.get(pk=endpoint.pk)
    for text in ("a-word-of-ours", "a-word-of-theirs", "0123456789", secret or "a-word-of-ours"):
        assert text.encode() not in bytes(row.sealed)
    sealed = sealing.unseal(row)
    assert sealed.url == GIVEN[kind].get("url", "")
    assert sealed.routing_key == GIVEN[kind].get("routing_key", "")
    assert sealed.authorization == GIVEN[kind].get("authorization", "")
    assert row.origin == ("" if kind == "email" else "https://8.8.8.8")
    for entry in AuditEntry.objects.all():
        assert "a-word-of-ours" not in str(entry.after)
        assert "a-word-of-theirs" not in str(entry.after)


def test_pagerduty_needs_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.deliveries.sending.addresses.resolve", lambda *_: ["8.8.8.8"])
    endpoint, _ = endpoints.create(None, "pagerduty", {"name": "pd", "routing_key": "x"})
    assert endpoint.origin == "https://events.pagerduty.com"


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        ("webhook", {}, "url"),
        ("webhook", {"url": "https://127.0.0.1/"}, "url"),
        ("webhook", {"url": "http://8.8.8.8/"}, "url"),
        ("webhook", {"url": "https://[::ffff:10.0.0.1]/"}, "url"),
        ("webhook", {"url": "https://169.254.169.254/", "allow_internal": True}, "url"),
        ("webhook", {"url": URL, "secret": "short"}, "secret"),
        ("webhook", {"url": URL, "routing_key": "x"}, "routing_key"),
        ("webhook", {"url": URL, "authorization": "a\r\nb: c"}, "authorization"),
        ("slack", {"url": URL, "secret": signing.new_secret()}, "secret"),
        ("pagerduty", {"url": URL}, "routing_key"),
        ("email", {}, "recipients"),
        ("email", {"recipients": ["a@b\r\nBcc: c@d"]}, "recipients"),
        ("email", {"recipients": ["oncall@example.com"] * 21}, "recipients"),
        ("email", {"recipients": ["oncall@example.com"], "url": URL}, "url"),
    ],
)
def test_what_cannot_be_delivered_to_is_refused_by_field(
    kind: str, given: dict[str, Any], field: str, settings: Settings
) -> None:
    settings.EMAIL_HOST = "mail.example"
    with pytest.raises(Invalid) as refused:
        endpoints.create(None, kind, {"name": "x", **given})
    assert set(refused.value.extra["errors"]) == {field}
    assert not Endpoint.objects.exists()


def test_mail_needs_a_server() -> None:
    with pytest.raises(Invalid, match="kind") as refused:
        made("email")
    assert "EMAIL_HOST" in refused.value.extra["errors"]["kind"][0]


def test_an_admin_can_allow_an_internal_address() -> None:
    endpoint = made(url="http://10.0.0.1:9093/x", allow_internal=True)
    assert endpoint.origin == "http://10.0.0.1:9093"
    with pytest.raises(Invalid):
        endpoints.change(None, endpoint.pk, {"allow_internal": False})


def test_without_a_key_nothing_is_stored(settings: Settings) -> None:
    settings.WEIR_ENCRYPTION_KEYS = []
    with pytest.raises(Unreadable, match="set WEIR_ENCRYPTION_KEYS"):
        made()
    assert not Endpoint.objects.exists()


def test_a_name_is_taken_until_its_endpoint_is_deleted() -> None:
    first = made()
    with pytest.raises(NameTaken):
        made()
    endpoints.delete(None, first.pk)
    assert made().pk != first.pk


def test_a_change_keeps_what_is_not_given() -> None:
    endpoint = made("alertmanager")
    changed = endpoints.change(None, endpoint.pk, {"name": "am", "description": "new"})
    assert (changed.name, changed.description, changed.origin) == ("am", "new", "https://8.8.8.8")
    sealed = sealing.unseal(changed)
    assert (sealed.url, sealed.authorization) == (URL, "Bearer a-word-of-theirs")
    (entry,) = AuditEntry.objects.filter(action="endpoint.change")
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["name"], entry.after["name"]) == ("alertmanager", "am")


def test_keys_do_not_follow_a_url_to_another_place() -> None:
    endpoint = made("alertmanager")
    with pytest.raises(Invalid, match="authorization"):
        endpoints.change(None, endpoint.pk, {"url": "https://8.8.4.4/"})
    assert sealing.unseal(endpoints.one(endpoint.pk)).url == URL
    same = endpoints.change(None, endpoint.pk, {"url": "https://8.8.8.8/other"})
    assert sealing.unseal(same).authorization == "Bearer a-word-of-theirs"
    moved = endpoints.change(
        None, endpoint.pk, {"url": "https://8.8.4.4/", "authorization": "Bearer new"}
    )
    assert sealing.unseal(moved).authorization == "Bearer new"
    (_, entry) = AuditEntry.objects.filter(action="endpoint.change").order_by("id")
    assert entry.after is not None
    assert entry.after["authorization_changed"] is True
    assert "Bearer" not in str(entry.after)


def test_an_endpoint_that_is_enabled_again_has_no_past() -> None:
    now = clock.now()
    endpoint = factories.endpoint(
        "https://8.8.8.8/x",
        is_enabled=False,
        disabled_at=now,
        disabled_reason="it answered 410 Gone",
        failures=9,
        failed_at=now,
        failing_since=now - timedelta(days=9),
        held_until=now + timedelta(hours=1),
    )
    assert endpoint.state == "disabled"
    changed = endpoints.change(None, endpoint.pk, {"is_enabled": True})
    assert (changed.state, changed.failures, changed.held_until) == ("ok", 0, None)
    assert (changed.disabled_at, changed.disabled_reason) == (None, "")
    disabled = endpoints.change(None, endpoint.pk, {"is_enabled": False})
    assert disabled.disabled_at is not None
    assert disabled.disabled_reason == ""


def test_an_endpoint_is_disabled_though_its_name_resolves_no_more(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.EMAIL_HOST = "mail.example"
    endpoint, mails = made(), made("email")

    def resolve(host: str, port: int) -> list[str]:
        raise addresses.AddressRefused(f"the name {host} cannot be resolved")

    monkeypatch.setattr(addresses, "resolve", resolve)
    settings.EMAIL_HOST = ""
    for one in (endpoint, mails):
        assert not endpoints.change(None, one.pk, {"is_enabled": False}).is_enabled
    with pytest.raises(Invalid, match="cannot be resolved"):
        endpoints.change(None, endpoint.pk, {"allow_internal": True})


def test_what_an_answer_repeats_of_the_secrets_is_masked() -> None:
    endpoint = made("alertmanager", authorization="Bearer the-credential")
    secrets = sealing.unseal(endpoint).repeatable()
    line = f"POST /hook?token=a-word-of-ours HTTP/1.1 to {URL}"
    body = f"{line} by the-credential (Bearer the-credential)"
    outcome = Outcome(meaning=Meaning.FAILED, body=body, headers={"location": URL}, error=URL)
    masked = outcome.without(secrets)
    assert masked.body == "POST *** HTTP/1.1 to *** by *** (***)"
    assert (masked.headers, masked.error) == ({"location": "***"}, "***")


def test_two_secrets_sign_during_a_rotation_and_one_after() -> None:
    endpoint, first = endpoints.create(None, "webhook", {"name": "x", "url": URL})
    rotated, second = endpoints.rotate(None, endpoint.pk, keep_previous=timedelta(hours=1))
    sealed, now = sealing.unseal(rotated), clock.now()
    assert sealed.secrets_at(now) == (second, first)
    assert sealed.secrets_at(now + timedelta(hours=1)) == (second,)
    assert rotated.previous_secret_until is not None
    leaked, third = endpoints.rotate(None, endpoint.pk, keep_previous=timedelta(0))
    assert sealing.unseal(leaked).secrets_at(now) == (third,)
    assert leaked.previous_secret_until is None
    mine = signing.new_secret()
    assert endpoints.rotate(None, endpoint.pk, mine)[1] == mine
    with pytest.raises(Invalid):
        endpoints.rotate(None, endpoint.pk, "short")


def test_a_kind_that_does_not_sign_has_no_secret_to_rotate() -> None:
    with pytest.raises(Invalid, match="secret"):
        endpoints.rotate(None, made("slack").pk)


def test_a_deleted_endpoint_has_no_secrets_left() -> None:
    endpoint = made()
    endpoints.delete(None, endpoint.pk)
    row = Endpoint.objects.get(pk=endpoint.pk)
    assert (bytes(row.sealed), row.is_enabled) == (b"", False)
    assert not endpoints.listed().exists()
    for call in (endpoints.one, lambda pk: endpoints.change(None, pk, {})):
        with pytest.raises(NotFound):
            call(endpoint.pk)


def test_secrets_of_endpoints_are_encrypted_anew_with_the_others(settings: Settings) -> None:
    old, new = (
        b"b2xkLW9sZC1vbGQtb2xkLW9sZC1vbGQtb2xkLW9sZC0=",
        b"bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldy0=",
    )
    settings.WEIR_ENCRYPTION_KEYS = [old]
    endpoint = made()
    gone = made(name="gone")
    endpoints.delete(None, gone.pk)
    settings.WEIR_ENCRYPTION_KEYS = [new, old]
    call_command("weir_reencrypt_secrets")
    settings.WEIR_ENCRYPTION_KEYS = [new]
    endpoint.refresh_from_db()
    assert sealing.unseal(endpoint).url == URL
    settings.WEIR_ENCRYPTION_KEYS = [old]
    with pytest.raises(Unreadable):
        sealing.unseal(endpoint)


def test_what_is_sealed_for_one_endpoint_opens_for_no_other() -> None:
    first, second = made(), made(name="second")
    first.sealed = second.sealed
    with pytest.raises(Unreadable):
        sealing.unseal(first)
