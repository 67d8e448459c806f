"""The only writers of endpoints. Each change leaves an audit entry, without URL and secrets."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.errors import Invalid, Problems, existing
from controlplane.deliveries import sealing
from controlplane.deliveries.errors import NameTaken
from controlplane.deliveries.machine import Health
from controlplane.deliveries.models import Endpoint
from controlplane.deliveries.receivers import KINDS, signing
from controlplane.deliveries.receivers.base import Receiver
from controlplane.deliveries.sealing import Sealed
from controlplane.deliveries.sending import addresses, mail

RECIPIENTS_MAX = 20
AUTHORIZATION_LENGTH_MAX = 1_000
ROUTING_KEY_LENGTH_MAX = 100
ROTATION = timedelta(days=1)  # The previous secret signs for so long, unless told otherwise.
ROTATION_MAX = timedelta(days=30)
KIND_FIELDS = ("url", "secret", "routing_key", "authorization", "recipients")
_SECRETS = ("url", "routing_key", "authorization")


def listed() -> QuerySet[Endpoint]:
    """All endpoints without what is sealed."""
    return Endpoint.objects.filter(deleted_at=None).defer("sealed")


def one(endpoint_id: UUID) -> Endpoint:
    """One endpoint without what is sealed.

    Raises:
        NotFound: There is none with this id.
    """
    return existing(listed().filter(pk=endpoint_id), f"There is no endpoint {endpoint_id}.")


def locked(endpoint_id: UUID) -> Endpoint:
    """One endpoint, with the lock on its row.

    Raises:
        NotFound: There is none with this id.
    """
    return existing(
        Endpoint.objects.select_for_update().filter(pk=endpoint_id, deleted_at=None),
        f"There is no endpoint {endpoint_id}.",
    )


def create(actor: User | None, kind: str, given: Mapping[str, Any]) -> tuple[Endpoint, str | None]:
    """Create an endpoint; return it, and its signing secret where the kind signs.

    Args:
        given: ``name``, ``description``, ``allow_internal``, ``is_enabled``, and the fields that
            the kind takes. A signing secret that is not given is generated.

    Raises:
        Invalid: A field is malformed, missing or not the kind's, or an address is not allowed.
        NameTaken: Another endpoint has the name.
        Unreadable: No encryption key is set.
    """
    receiver = KINDS[kind]
    secret = given.get("secret") or (signing.new_secret() if "secret" in receiver.takes else "")
    sealed = Sealed(
        url=given.get("url") or receiver.url,
        secret=secret,
        routing_key=given.get("routing_key", ""),
        authorization=given.get("authorization", ""),
    )
    allow_internal = bool(given.get("allow_internal", False))
    recipients = list(given.get("recipients", ()))
    origin = _checked(receiver, given, sealed, recipients, allow_internal)
    id, now = uuid4(), clock.now()
    endpoint = Endpoint(
        id=id,
        kind=kind,
        name=given["name"],
        description=given.get("description", ""),
        origin=origin,
        recipients=recipients,
        sealed=sealing.seal(id, sealed),
        secret_set_at=now if secret else None,
        allow_internal=allow_internal,
        is_enabled=given.get("is_enabled", True),
        disabled_at=None if given.get("is_enabled", True) else now,
        created_at=now,
        changed_at=now,
        created_by=actor,
        created_by_name="control plane" if actor is None else actor.get_username(),
    )
    with transaction.atomic():
        _save(endpoint, force_insert=True)
        record(actor, "endpoint.create", _target(endpoint), after=_told(endpoint))
    return endpoint, secret or None


def change(actor: User | None, endpoint_id: UUID, given: Mapping[str, Any]) -> Endpoint:
    """Change the fields that are given; the kind and the signing secret stay.

    An endpoint that is enabled again begins without a past. Keys that are sent along have to be
    given again with a URL of another origin: a new URL must not be a way to read them.

    Raises:
        NotFound: There is no such endpoint.
        Invalid: As ``create``.
        NameTaken: Another endpoint has the name.
        Unreadable: No key reads what is sealed.
    """
    before = one(endpoint_id)
    receiver = KINDS[before.kind]
    sealed = sealing.unseal(before)
    changed = replace(sealed, **{name: given[name] for name in _SECRETS if name in given})
    if not changed.url:
        changed = replace(changed, url=receiver.url)
    allow_internal = bool(given.get("allow_internal", before.allow_internal))
    recipients = list(given.get("recipients", before.recipients))
    origin = before.origin
    if not given.keys().isdisjoint((*KIND_FIELDS, "allow_internal")):
        # Names are resolved before the transaction: that may take seconds.
        origin = _checked(receiver, given, changed, recipients, allow_internal)
    if origin != before.origin:
        _check_keys_given(sealed, given)
    with transaction.atomic():
        endpoint = locked(endpoint_id)
        is_overtaken = bytes(endpoint.sealed) != bytes(before.sealed)
        if not is_overtaken:
            told, now = _told(endpoint), clock.now()
            endpoint.name = given.get("name", endpoint.name)
            endpoint.description = given.get("description", endpoint.description)
            endpoint.origin, endpoint.recipients = origin, recipients
            endpoint.allow_internal, endpoint.changed_at = allow_internal, now
            if changed != sealed:
                endpoint.sealed = sealing.seal(endpoint.pk, changed)
            _enable(endpoint, given.get("is_enabled", endpoint.is_enabled), now)
            _save(endpoint)
            after = _told(endpoint) | {
                f"{name}_changed": True
                for name in _SECRETS
                if getattr(changed, name) != getattr(sealed, name)
            }
            record(actor, "endpoint.change", _target(endpoint), before=told, after=after)
    # Another request changed what is sealed since it was read: begin again with that.
    return change(actor, endpoint_id, given) if is_overtaken else endpoint


def rotate(
    actor: User | None,
    endpoint_id: UUID,
    secret: str | None = None,
    keep_previous: timedelta = ROTATION,
) -> tuple[Endpoint, str]:
    """Replace the signing secret; the previous one signs as well for a while.

    Args:
        secret: The new one; None: it is generated.

    Raises:
        NotFound: There is no such endpoint.
        Invalid: The kind does not sign, or the secret is malformed.
        Unreadable: No key reads what is sealed.
    """
    with transaction.atomic():
        endpoint = locked(endpoint_id)
        problems = Problems()
        if "secret" not in KINDS[endpoint.kind].takes:
            problems.add("secret", f"Endpoints of the kind {endpoint.kind} have no signing secret.")
        elif secret is not None:
            _check_secret(problems, secret)
        problems.refuse("The secret cannot be replaced")
        new, now = secret or signing.new_secret(), clock.now()
        sealed = sealing.unseal(endpoint)
        until = now + keep_previous if keep_previous > timedelta(0) else None
        rotated = replace(
            sealed,
            secret=new,
            previous=sealed.secret if until else "",
            previous_until=until,
        )
        endpoint.sealed = sealing.seal(endpoint.pk, rotated)
        endpoint.secret_set_at = endpoint.changed_at = now
        endpoint.previous_secret_until = until
        endpoint.save()
        kept = None if until is None else until.isoformat()
        record(actor, "endpoint.rotate", _target(endpoint), after={"previous_until": kept})
    return endpoint, new


def delete(actor: User | None, endpoint_id: UUID) -> None:
    """Delete an endpoint with its secrets; its deliveries stay in the log for a while.

    Raises:
        NotFound: There is no such endpoint.
    """
    with transaction.atomic():
        endpoint = locked(endpoint_id)
        now = clock.now()
        endpoint.is_enabled, endpoint.deleted_at = False, now
        endpoint.disabled_at = endpoint.disabled_at or now
        endpoint.sealed = b""
        endpoint.save()
        record(actor, "endpoint.delete", _target(endpoint), before=_told(endpoint))


@transaction.atomic
def reencrypt() -> int:
    """Encrypt what all endpoints have sealed with the first key; return their number.

    Raises:
        Unreadable: No key reads one of them; none was changed.
    """
    rows = list(Endpoint.objects.filter(deleted_at=None).select_for_update().order_by("pk"))
    for row in rows:
        row.sealed = sealing.rotated(row)
        row.save(update_fields=["sealed"])
    if rows:
        record(None, "endpoint.reencrypt", "endpoints", after={"count": len(rows)})
    return len(rows)


def _save(endpoint: Endpoint, *, force_insert: bool = False) -> None:
    try:
        with transaction.atomic():
            endpoint.save(force_insert=force_insert)
    except IntegrityError as error:
        if "endpoint_name" not in str(error):
            raise
        raise NameTaken(f"There is an endpoint {endpoint.name} already.") from error


def _enable(endpoint: Endpoint, is_enabled: bool, now: datetime) -> None:
    if is_enabled and not endpoint.is_enabled:
        endpoint.health = Health()
        endpoint.disabled_at, endpoint.disabled_reason = None, ""
    elif not is_enabled and endpoint.is_enabled:
        endpoint.disabled_at, endpoint.disabled_reason = now, ""
    endpoint.is_enabled = is_enabled


def _target(endpoint: Endpoint) -> str:
    return f"endpoint/{endpoint.name}"


def _told(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "kind": endpoint.kind,
        "origin": endpoint.origin,
        "recipients": endpoint.recipients,
        "allow_internal": endpoint.allow_internal,
        "is_enabled": endpoint.is_enabled,
    }


# Checks -------------------------------------------------------------------------------------------


def _checked(
    receiver: Receiver,
    given: Mapping[str, Any],
    sealed: Sealed,
    recipients: list[str],
    allow_internal: bool,
) -> str:
    """The origin of the endpoint's URL, once all of its fields are in order."""
    problems = Problems()
    for field in KIND_FIELDS:
        if given.get(field) and field not in receiver.takes:
            problems.add(field, f"Endpoints of the kind {receiver.kind} have no {field}.")
    held = {"url": sealed.url, "routing_key": sealed.routing_key, "recipients": recipients}
    for field in sorted(receiver.needs):
        if not held[field]:
            problems.add(field, f"Endpoints of the kind {receiver.kind} need this.")
    if given.get("secret"):
        _check_secret(problems, given["secret"])
    _check_printable(problems, "authorization", sealed.authorization, AUTHORIZATION_LENGTH_MAX)
    _check_printable(problems, "routing_key", sealed.routing_key, ROUTING_KEY_LENGTH_MAX)
    if receiver.kind == "email":
        _check_mail(problems, recipients)
    problems.refuse("The endpoint cannot be stored")
    return _origin(sealed.url, allow_internal) if "url" in receiver.takes else ""


def _origin(url: str, allow_internal: bool) -> str:
    try:
        place = addresses.parsed(url, allow_internal=allow_internal)
        addresses.checked(place, allow_internal=allow_internal)
    except addresses.AddressRefused as refused:
        said = str(refused)
        raise Invalid(f"The endpoint cannot be stored: {said}.", errors={"url": [said]}) from None
    return place.origin


def _check_secret(problems: Problems, secret: str) -> None:
    if not signing.is_secret(secret):
        problems.add(
            "secret",
            f"Give {signing.PREFIX} and {signing.SECRET_BYTES_MIN} to {signing.SECRET_BYTES_MAX} "
            "bytes in base64, or leave it out: then one is generated.",
        )


def _check_printable(problems: Problems, field: str, text: str, length_max: int) -> None:
    if len(text) > length_max or not text.isascii() or not text.isprintable():
        problems.add(field, f"Give at most {length_max:,} printable ASCII characters.")


def _check_mail(problems: Problems, recipients: list[str]) -> None:
    if len(recipients) > RECIPIENTS_MAX:
        problems.add("recipients", f"Give at most {RECIPIENTS_MAX} addresses.")
    for address in recipients:
        try:
            validate_email(address)
        except ValidationError:
            problems.add("recipients", f"{address!r} is no address of e-mail.")
    if not mail.is_configured():
        problems.add("kind", "No server for e-mail is set; set EMAIL_HOST for web and worker.")


def _check_keys_given(sealed: Sealed, given: Mapping[str, Any]) -> None:
    problems = Problems()
    for field in ("authorization", "routing_key"):
        if getattr(sealed, field) and field not in given:
            problems.add(field, "Give this again: the URL now leads to another place.")
    problems.refuse("The endpoint cannot be changed")
