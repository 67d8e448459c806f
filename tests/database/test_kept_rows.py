"""Rows and files of a module: each test begins with them, and nothing is left at the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from jobs.models import Job
from tests import factories
from tests.database.kept_rows import kept_files, kept_rows


@pytest.fixture(scope="module")
def kept(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("files")
    (directory / "kept").write_text("as it was")
    with kept_rows(django_db_blocker):
        factories.job(id="kept")
        yield directory


@pytest.fixture
def directory(kept: Path, db: None) -> Iterator[Path]:
    with kept_files(kept):
        yield kept


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_change_of_one_test_is_gone_for_the_next(directory: Path, time: str) -> None:
    assert Job.objects.get().name == "flights"
    assert [file.read_text() for file in directory.iterdir()] == ["as it was"]
    Job.objects.update(name="changed")
    factories.job()
    (directory / "kept").unlink()
    (directory / "more").write_text("more")


def test_the_rows_are_gone_at_the_end(kept: Path, django_db_blocker: DjangoDbBlocker) -> None:
    with kept_rows(django_db_blocker):
        factories.job(id="another")
        assert Job.objects.filter(pk="another").exists()
    with django_db_blocker.unblock():
        assert [job.pk for job in Job.objects.all()] == ["kept"]
