import hashlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread, Timer

import pytest
from django.db import connection, transaction
from pytest_django.fixtures import Settings

from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import Invalid, TooLarge
from controlplane.base.threads import FileThreads, Unavailable
from controlplane.base.ticks import Budget
from jobs import pipeline_files, services, uploads
from jobs.models import Artifact, Job
from tests.database.hung_files import hung
from tests.database.jobs.builders import at_once, submission

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
    assert path.stat().st_mode & 0o777 == 0o640  # Read by user code that has the group;
    assert path.parent.stat().st_mode & 0o777 == 0o700  # here, by its owner alone.
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


# Removal ------------------------------------------------------------------------------------------

AGE = timedelta(days=30)


def old_upload(operator: User, content: list[bytes] | None = None) -> Artifact:
    artifact = uploads.store(operator, "orders.py", content or CODE)
    Artifact.objects.filter(pk=artifact.pk).update(uploaded_at=clock.now() - 2 * AGE)
    return artifact


def remove() -> int:
    return uploads.remove_unused(clock.now() - AGE, None, Budget(60.0))


def test_an_old_upload_that_no_job_uses_goes_with_its_file(
    operator: User, directories: Path
) -> None:
    old_upload(operator)
    young = uploads.store(operator, "young.py", [b"print()"])
    assert remove() == 1
    assert files(directories) == [uploads.path_of(young)]
    assert set(Artifact.objects.all()) == {young}


def test_one_that_is_uploaded_again_begins_anew(operator: User) -> None:
    artifact = old_upload(operator)
    uploads.store(operator, "orders.py", CODE)
    assert remove() == 0
    assert uploads.path_of(artifact).is_file()


def test_a_file_that_comes_too_late_for_its_request_is_deleted(
    operator: User, directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Event()

    def chunks() -> Iterator[bytes]:
        yield b"print(1)"
        answers.wait(60)

    threads = FileThreads(1, "hung")
    monkeypatch.setattr(pipeline_files, "threads", threads)
    monkeypatch.setattr(pipeline_files, "WRITE_WAIT_S", 0.2)
    with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
        uploads.store(operator, "orders.py", chunks())
    assert len(files(directories)) == 1
    answers.set()
    threads.close()
    assert files(directories) == []
    assert not Artifact.objects.exists()


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_read_that_hangs_is_not_waited_for(
    operator: User, monkeypatch: pytest.MonkeyPatch, *, is_streamed: bool
) -> None:
    """Nor is the closing of its file, which waits for the read."""
    artifact = uploads.store(operator, "orders.py", CODE)
    reader, writer = os.pipe()
    threads = FileThreads(1, "hung")
    run = threads.run
    monkeypatch.setattr(threads, "run", lambda function, wait_s=0.1: run(function, wait_s=0.1))
    monkeypatch.setattr(pipeline_files, "threads", threads)
    monkeypatch.setattr(Path, "open", lambda path, mode: os.fdopen(reader, mode))
    answers = Timer(30.0, os.close, (writer,))
    answers.start()
    try:
        if is_streamed:
            file = uploads.opened(artifact)
            with pytest.raises(TimeoutError):
                file.read(10)
            file.close()
        else:
            with pytest.raises(Unavailable):
                uploads.beginning(artifact, 10)
        assert answers.is_alive()
    finally:
        if answers.is_alive():
            answers.cancel()
            os.close(writer)
        threads.close()


def test_uploads_stay_where_their_file_server_hangs(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = old_upload(operator)
    with hung(monkeypatch), pytest.raises(Unavailable, match="cannot be reached"):
        remove()
    assert uploads.path_of(artifact).is_file()
    assert remove() == 1


def test_uploads_stay_where_their_directory_is_not_on_this_machine(
    operator: User, settings: Settings, tmp_path: Path
) -> None:
    old_upload(operator)
    settings.WEIR_UPLOADS = tmp_path / "not here"
    with pytest.raises(FileNotFoundError, match="mount the web service's WEIR_UPLOADS"):
        remove()
    assert Artifact.objects.count() == 1


def test_a_file_that_is_gone_already_stops_nothing(operator: User) -> None:
    uploads.path_of(old_upload(operator)).unlink()
    assert remove() == 1


@pytest.mark.django_db(transaction=True)
def test_a_submission_and_the_removal_of_its_upload_exclude_each_other(operator: User) -> None:
    """The job is being created: its upload is in use, though no other transaction sees that."""
    artifact = old_upload(operator)
    created, may_commit = Event(), Event()

    def submit() -> None:
        try:
            with transaction.atomic():
                services.submit(
                    operator,
                    submission(
                        pipeline_kind="upload", pipeline_target="", artifact_digest=artifact.pk
                    ),
                )
                created.set()
                may_commit.wait(60)
        finally:
            connection.close()

    submitting = Thread(target=submit)
    submitting.start()
    try:
        assert created.wait(60)
        assert remove() == 0
    finally:
        may_commit.set()
        submitting.join()
    assert Job.objects.get().artifact == artifact
    assert uploads.path_of(artifact).is_file()


@pytest.mark.django_db(transaction=True)
def test_a_submission_whose_upload_has_just_gone_is_refused(operator: User) -> None:
    artifact = old_upload(operator)
    asked = submission(pipeline_kind="upload", pipeline_target="", artifact_digest=artifact.pk)
    checked = services.check(asked)  # The upload is still there,
    assert remove() == 1  # and goes before the job is created.
    said = "has just been removed; upload the script again"
    with pytest.raises(Invalid, match=said), transaction.atomic():
        services._created(operator, checked, None)
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_equal_upload_waits_for_the_removal_and_is_there_afterwards(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = old_upload(operator)
    path = uploads.path_of(artifact)
    stored: list[Artifact] = []
    real = uploads._is_asked_for

    def store() -> None:
        try:
            stored.append(uploads.store(operator, "orders.py", CODE))
        finally:
            connection.close()

    storing = Thread(target=store)

    def meanwhile(digest: str) -> bool:
        storing.start()  # The removal holds the lock: it has to wait.
        storing.join(0.5)
        assert storing.is_alive()
        return real(digest)

    monkeypatch.setattr(uploads, "_is_asked_for", meanwhile)
    assert remove() == 1
    storing.join(60)
    assert stored == [artifact]
    assert path.read_bytes() == b"".join(CODE)
    assert Artifact.objects.filter(pk=artifact.pk).exists()
