import hashlib
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base.errors import Invalid, TooLarge
from jobs import uploads
from jobs.models import Artifact
from tests.database.jobs.builders import at_once

pytestmark = pytest.mark.django_db

CODE = [b"print(", b"'streams')\n"]


def files(directory: Path) -> list[Path]:
    return sorted((directory / "uploads").iterdir())


def test_upload_is_kept_by_its_content(operator: User, directories: Path) -> None:
    artifact = uploads.store(operator, "orders.py", CODE)
    assert artifact.digest == hashlib.sha256(b"".join(CODE)).hexdigest()
    assert (artifact.file_name, artifact.size, artifact.uploaded_by) == ("orders.py", 17, operator)
    path = uploads.path_of(artifact)
    assert path.read_bytes() == b"".join(CODE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert files(directories) == [path]
    assert AuditEntry.objects.get(action="upload.store").target == f"upload/{artifact.digest}"


def test_same_content_is_kept_once(operator: User, directories: Path) -> None:
    first = uploads.store(operator, "orders.py", CODE)
    again = uploads.store(operator, "other.py", [b"".join(CODE)])
    assert (again.pk, again.file_name) == (first.pk, "orders.py")
    assert len(files(directories)) == Artifact.objects.count() == 1


def test_file_that_was_lost_comes_back_with_the_next_upload(operator: User) -> None:
    path = uploads.path_of(uploads.store(operator, "orders.py", CODE))
    path.unlink()
    uploads.store(operator, "orders.py", CODE)
    assert path.is_file()


@pytest.mark.django_db(transaction=True)
def test_same_content_at_the_same_time(operator: User, directories: Path) -> None:
    results = at_once(*[lambda: uploads.store(operator, "orders.py", CODE)] * 4)
    assert len({artifact.pk for artifact in results}) == 1
    assert len(files(directories)) == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../../etc/cron.d/evil.py",
        "/etc/passwd.py",
        "a\\b.py",
        "..",
        ".hidden.py",
        "new\nline.py",
        "nul\0.py",
        "pipeline.sh",
        "x" * 198 + ".py",
    ],
)
def test_names_that_are_no_plain_script_names_are_refused(
    operator: User, directories: Path, name: str
) -> None:
    with pytest.raises(Invalid) as refused:
        uploads.store(operator, name, CODE)
    assert "file" in refused.value.extra["errors"]
    assert not (directories / "uploads").exists()
    assert not Artifact.objects.exists()


def test_too_much_is_refused_while_it_comes(
    operator: User, directories: Path, settings: Settings
) -> None:
    settings.WEIR_UPLOAD_BYTES_MAX = 10
    taken = []

    def chunks() -> object:
        for _ in range(1_000):
            taken.append(1)
            yield b"12345"

    with pytest.raises(TooLarge):
        uploads.store(operator, "big.py", chunks())
    assert len(taken) == 3
    assert files(directories) == []


def test_exactly_the_limit_is_taken(operator: User, settings: Settings) -> None:
    settings.WEIR_UPLOAD_BYTES_MAX = 17
    assert uploads.store(operator, "orders.py", CODE).size == 17


def test_empty_file_is_refused_and_leaves_nothing(operator: User, directories: Path) -> None:
    with pytest.raises(Invalid):
        uploads.store(operator, "empty.py", [b"", b""])
    assert files(directories) == []


def test_upload_that_breaks_off_leaves_nothing(operator: User, directories: Path) -> None:
    def chunks() -> object:
        yield b"half"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        uploads.store(operator, "orders.py", chunks())
    assert files(directories) == []
    assert not Artifact.objects.exists()
