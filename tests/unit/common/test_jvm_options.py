"""The options of Spark's JVMs, with and without the archive of its classes."""

from pathlib import Path

import pytest

from weir import jvm_options


def test_the_archive_is_used_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "spark-classes.jsa"
    monkeypatch.setattr(jvm_options, "ARCHIVE", archive)
    assert jvm_options.jvm_options() == jvm_options.OPTIONS
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive} " in jvm_options.jvm_options()


def test_a_path_that_spark_would_cut_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "a user's" / "spark-classes.jsa"
    archive.parent.mkdir()
    archive.touch()
    monkeypatch.setattr(jvm_options, "ARCHIVE", archive)
    assert jvm_options.jvm_options() == jvm_options.OPTIONS
