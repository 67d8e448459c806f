"""The audit log as a file: everything is in it, and a spreadsheet calculates nothing from it."""

import csv
import json
import stat
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from controlplane.accounts.models import Role
from controlplane.audit import chain, export
from controlplane.audit.export import Format
from controlplane.audit.models import AuditEntry
from controlplane.base.ticks import Budget
from tests import factories

pytestmark = pytest.mark.django_db

DAY = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(factories.user(Role.ADMIN, "ada"))
    return client


def content(response: object) -> str:
    return b"".join(response).decode()  # type: ignore[call-overload, no-any-return]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_every_value_is_in_the_lines_and_their_digests_can_be_checked_anywhere() -> None:
    factories.audit_entry(
        before={"é": [1, None, 2.5]}, after={"x": "a\nb"}, address="10.0.0.1", at=DAY
    )
    factories.audit_entry(at=DAY + timedelta(seconds=1), count=3, last_at=DAY)
    chain.seal(Budget(60.0))
    lines = [json.loads(line) for line in "".join(_export(Format.JSONL)).splitlines()]
    assert lines[0]["before"] == {"é": [1, None, 2.5]}
    assert (lines[0]["number"], lines[1]["number"], lines[1]["count"]) == (1, 2, 3)
    previous = ""
    for line in lines:
        moments = {k: v and datetime.fromisoformat(v) for k, v in line.items() if k.endswith("at")}
        entry = AuditEntry(**line | moments)
        assert chain.digest(previous, entry) == line["digest"]
        previous = line["digest"]


def _export(form: Format) -> list[str]:
    return list(export.export(AuditEntry.objects.all(), form))


def test_a_spreadsheet_shows_what_it_could_calculate() -> None:
    texts = ["=1+1", "+1", "-1", "@A1", "\t=1", "plain", 'with "quotes", commas\nand lines']
    for seconds, text in enumerate(texts):
        factories.audit_entry(target=text, at=DAY + timedelta(seconds=seconds))
    shown = [row["target"] for row in rows("".join(_export(Format.CSV)))]
    assert shown == [*(f"'{text}" for text in texts[:5]), *texts[5:]]


def test_entries_come_in_order_over_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "BATCH", 3)
    for n in range(10):  # Four at the same moment, over the end of a part.
        factories.audit_entry(target=f"job/{n}", at=DAY + timedelta(seconds=max(n, 4)))
    parts = _export(Format.JSONL)
    assert len(parts) == 4
    targets = [json.loads(line)["target"] for line in "".join(parts).splitlines()]
    assert targets == [f"job/{n}" for n in range(10)]


def test_an_admin_downloads_what_the_filters_select_and_that_is_audited(admin: Client) -> None:
    factories.audit_entry("job.cancel", "job/a")
    factories.audit_entry("job.stop", "job/b")
    response = admin.get("/audit/export", {"format": "csv", "action": "job.stop"})
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"].startswith('attachment; filename="audit-')
    assert [row["target"] for row in rows(content(response))] == ["job/b"]
    entry = AuditEntry.objects.get(action="audit.export")
    assert (entry.actor_name, entry.after) == ("ada", {"format": "csv", "action": "job.stop"})


def test_the_page_leads_to_the_export_with_its_filters(admin: Client) -> None:
    page = admin.get("/audit/", {"actor": "mara & co"}).content.decode()
    assert "/audit/export?format=jsonl&amp;actor=mara+%26+co" in page


def test_the_page_hides_secrets_and_the_command_does_not(admin: Client) -> None:
    factories.audit_entry(after={"options": {"parameters": {"password": "hunter2"}}})
    shown = content(admin.get("/audit/export", {"format": "jsonl"}))
    assert "hunter2" not in shown
    assert "parameters" in shown
    out = StringIO()
    call_command("weir_audit", "export", stdout=out)
    assert "hunter2" in out.getvalue()


@pytest.mark.parametrize("query", [{"format": "xml"}, {"after": "yesterday"}])
def test_a_malformed_export_is_refused(admin: Client, query: dict[str, str]) -> None:
    assert admin.get("/audit/export", query).status_code == 404
    assert not AuditEntry.objects.filter(action="audit.export").exists()


def test_the_command_writes_a_private_file_and_never_over_another(tmp_path: Path) -> None:
    factories.audit_entry(target="job/old", at=DAY - timedelta(days=2))
    factories.audit_entry(target="job/new", at=DAY)
    file = tmp_path / "audit.csv"
    given = ("export", "--format", "csv", "--after", "2026-11-01", "--file", str(file))
    call_command("weir_audit", *given)
    targets = [row["target"] for row in rows(file.read_text())]
    assert targets == ["job/new", "audit"]  # And the export's own entry.
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(CommandError, match="exists; name a new file"):
        call_command("weir_audit", *given)
    with pytest.raises(CommandError, match="could not be written"):
        call_command("weir_audit", "export", "--file", str(tmp_path / "none" / "audit"))
    with pytest.raises(CommandError, match="no time; give one such as"):
        call_command("weir_audit", "export", "--after", "yesterday")
