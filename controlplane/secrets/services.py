"""The only writers and readers of secrets. Each change leaves an audit entry, without the value."""

from collections.abc import Iterable

from django.db import transaction
from django.db.models import QuerySet

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.errors import Invalid, NotFound, existing
from controlplane.secrets import encryption
from controlplane.secrets.models import Secret
from weir.config import SECRET_NAME_RULE, is_secret_name

VALUE_BYTES_MAX = 16 << 10  # A key with its chain of certificates fits.


def listed() -> QuerySet[Secret]:
    """All secrets without their values."""
    return Secret.objects.defer("encrypted")


def one(name: str) -> Secret:
    """One secret without its value.

    Raises:
        NotFound: There is none of this name.
    """
    secrets = listed().filter(pk=name) if is_secret_name(name) else listed().none()
    return existing(secrets, f"There is no secret {name[:100]!r}.")


def locked(name: str) -> Secret | None:
    """One secret, locked until the transaction ends; None: there is none of this name."""
    rows = Secret.objects.select_for_update(of=("self",)).defer("encrypted")
    return rows.filter(pk=name).first() if is_secret_name(name) else None


@transaction.atomic
def store(actor: User | None, name: str, value: str) -> tuple[Secret, bool]:
    """Store a secret, or replace its value; True: it is new.

    Drivers that run keep the value that they were started with.

    Raises:
        Invalid: The name or the value is malformed.
        Unreadable: No encryption key is set.
    """
    _check(name, value)
    now = clock.now()
    values = {
        "encrypted": encryption.encrypt(name, value),
        "set_at": now,
        "set_by": actor,
        "set_by_name": "control plane" if actor is None else actor.get_username(),
    }
    secret, is_new = Secret.objects.update_or_create(
        name=name, defaults=values, create_defaults={**values, "created_at": now}
    )
    record(actor, "secret.create" if is_new else "secret.replace", f"secret/{name}")
    return secret, is_new


@transaction.atomic
def delete(actor: User | None, name: str) -> None:
    """Delete a secret. Jobs that name it cannot start another driver.

    Raises:
        NotFound: There is none of this name.
    """
    count, _ = Secret.objects.filter(pk=one(name).pk).delete()
    if not count:  # Another request was first.
        raise NotFound(f"There is no secret {name}.")
    record(actor, "secret.delete", f"secret/{name}")


def missing(names: Iterable[str]) -> list[str]:
    """Those of the names that no secret has."""
    wanted = set(names)
    possible = filter(is_secret_name, wanted)
    known = Secret.objects.filter(pk__in=list(possible)).values_list("pk", flat=True)
    return sorted(wanted.difference(known))


def values_of(names: Iterable[str]) -> dict[str, str]:
    """The values of secrets by name, for a process that a launcher is about to start.

    Raises:
        NotFound: One of them does not exist any more.
        Unreadable: No key reads one of them.
    """
    wanted = sorted(set(names))
    if not wanted:
        return {}
    # No other column: a launcher's role in the database need not read more.
    stored = Secret.objects.filter(pk__in=wanted).values_list("name", "encrypted")
    rows = {name: bytes(encrypted) for name, encrypted in stored}
    if gone := [name for name in wanted if name not in rows]:
        raise NotFound(f"There is no secret {', '.join(gone)}; store it again.")
    return {name: encryption.decrypt(name, rows[name]) for name in wanted}


@transaction.atomic
def reencrypt() -> int:
    """Encrypt all secrets with the first key; return their number.

    Raises:
        Unreadable: No key reads one of them; none was changed.
    """
    rows = list(Secret.objects.select_for_update().order_by("pk"))
    for row in rows:
        row.encrypted = encryption.rotate(row.pk, bytes(row.encrypted))
        row.save(update_fields=["encrypted"])
    if rows:
        record(None, "secret.reencrypt", "secrets", after={"count": len(rows)})
    return len(rows)


def _check(name: str, value: str) -> None:
    errors: dict[str, list[str]] = {}
    if not is_secret_name(name):
        errors["name"] = [f"{SECRET_NAME_RULE[0].upper()}{SECRET_NAME_RULE[1:]}."]
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        errors["value"] = ["The value is no valid Unicode text; store binary values in base64."]
    else:
        if not 1 <= size <= VALUE_BYTES_MAX or "\0" in value:
            errors["value"] = [f"A value has 1 to {VALUE_BYTES_MAX:,} bytes, and no NUL character."]
    if errors:
        raise Invalid(
            f"The secret cannot be stored like this; see {', '.join(errors)}.", errors=errors
        )
