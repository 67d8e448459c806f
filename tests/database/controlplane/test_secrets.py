"""Secrets at rest: encrypted under their names, with keys that are replaced one after the other."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.audit.models import AuditEntry
from controlplane.base.errors import Invalid, NotFound
from controlplane.secrets import services
from controlplane.secrets.encryption import Unreadable
from controlplane.secrets.models import Secret
from tests import factories

pytestmark = pytest.mark.django_db

OLD = b"b2xkLWtleS1vbGQta2V5LW9sZC1rZXktb2xkLWtleS0="
NEW = b"bmV3LWtleS1uZXcta2V5LW5ldy1rZXktbmV3LWtleS0="
VALUE = "correct horse battery staple"


def rows() -> str:
    """Every column of every row that a secret leaves, as the database shows them."""
    shown = []
    with connection.cursor() as cursor:
        for table in ("secrets_secret", "audit_auditentry"):
            cursor.execute(f"SELECT t::text FROM {table} t")
            shown += [row[0] for row in cursor.fetchall()]
    return "\n".join(shown)


def test_a_stored_value_is_read_back_and_no_row_shows_it() -> None:
    actor = factories.user(Role.OPERATOR, "mara")
    secret, is_new = services.store(actor, "PASSWORD", VALUE)
    assert is_new
    assert (secret.set_by_name, str(secret)) == ("mara", "PASSWORD")
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": VALUE}
    assert "PASSWORD" in rows()
    assert VALUE not in rows()
    assert VALUE.encode().hex() not in rows()


def test_each_change_is_audited_without_the_value() -> None:
    actor = factories.user(Role.OPERATOR, "mara")
    services.store(actor, "PASSWORD", VALUE)
    _, is_new = services.store(actor, "PASSWORD", "another value")
    assert not is_new
    services.delete(actor, "PASSWORD")
    entries = AuditEntry.objects.order_by("id").values_list("action", "target", "before", "after")
    assert list(entries) == [
        ("secret.create", "secret/PASSWORD", None, None),
        ("secret.replace", "secret/PASSWORD", None, None),
        ("secret.delete", "secret/PASSWORD", None, None),
    ]


@pytest.mark.parametrize("name", ["", "1ST", "A-B", "A_FILE", "A" * 65, "A\0"])
def test_a_name_that_is_no_variables_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        services.store(None, name, VALUE)
    assert list(refused.value.extra["errors"]) == ["name"]


@pytest.mark.parametrize("value", ["", "a\0b", "\ud800", "x" * (services.VALUE_BYTES_MAX + 1)])
def test_a_value_that_no_process_could_get_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(Invalid) as refused:
        services.store(None, "PASSWORD", value)
    assert list(refused.value.extra["errors"]) == ["value"]
    assert not value or value not in str(refused.value.extra)


def test_a_missing_secret_is_named() -> None:
    services.store(None, "KNOWN", VALUE)
    assert services.missing(["KNOWN", "GONE"]) == ["GONE"]
    with pytest.raises(NotFound, match="There is no secret GONE"):
        services.values_of(["KNOWN", "GONE"])
    for name in ("GONE", "a\0b", "x" * 5_000):
        with pytest.raises(NotFound, match="There is no secret"):
            services.delete(None, name)
        with pytest.raises(NotFound, match="There is no secret"):
            services.one(name)


def test_keys_are_replaced_in_three_steps(settings: Settings) -> None:
    settings.WEIR_ENCRYPTION_KEYS = [OLD]
    services.store(None, "PASSWORD", VALUE)
    settings.WEIR_ENCRYPTION_KEYS = [NEW, OLD]
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": VALUE}
    said = StringIO()
    call_command("weir_reencrypt_secrets", stdout=said)
    assert said.getvalue() == "1 secrets and 0 endpoints are encrypted with the first key\n"
    settings.WEIR_ENCRYPTION_KEYS = [NEW]
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": VALUE}


def test_a_value_that_no_key_reads_names_the_secret_and_the_setting(settings: Settings) -> None:
    settings.WEIR_ENCRYPTION_KEYS = [OLD]
    services.store(None, "PASSWORD", VALUE)
    services.store(None, "TOKEN", VALUE)
    before = dict(Secret.objects.values_list("name", "encrypted"))
    settings.WEIR_ENCRYPTION_KEYS = [NEW]
    said = "no key of WEIR_ENCRYPTION_KEYS reads the secret PASSWORD; add the key"
    with pytest.raises(Unreadable, match=said):
        services.values_of(["PASSWORD"])
    with pytest.raises(CommandError, match=said):
        call_command("weir_reencrypt_secrets")
    after = dict(Secret.objects.values_list("name", "encrypted"))
    assert {k: bytes(v) for k, v in after.items()} == {k: bytes(v) for k, v in before.items()}


def test_without_a_key_nothing_is_stored_and_the_setting_is_named(settings: Settings) -> None:
    settings.WEIR_ENCRYPTION_KEYS = []
    with pytest.raises(Unreadable, match="set WEIR_ENCRYPTION_KEYS, or WEIR_ENCRYPTION_KEYS_FILE"):
        services.store(None, "PASSWORD", VALUE)
    assert not Secret.objects.exists()


def test_a_ciphertext_under_another_name_is_refused() -> None:
    """A writer of the database exchanges two rows, to have one job use the other's value."""
    services.store(None, "MINE", "harmless")
    services.store(None, "YOURS", VALUE)
    stolen = Secret.objects.get(pk="YOURS").encrypted
    Secret.objects.filter(pk="MINE").update(encrypted=stolen)
    with pytest.raises(Unreadable, match="secret MINE holds the value of another one"):
        services.values_of(["MINE"])
