"""The archive of Spark's classes: mapped by every JVM that Weir starts, and no condition."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext

from weir import jvm_options
from weir.spark import class_archive


def jvms() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [process for process in children if process.name() == "java"]


def test_a_jvm_maps_the_archive_that_set_up_wrote(local: SparkContext) -> None:
    assert jvm_options.ARCHIVE.is_file(), "make setup writes it"
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in jvms()]
    assert maps
    assert all(str(jvm_options.ARCHIVE) in text for text in maps)


def test_a_java_that_the_archive_was_not_written_for_goes_on_without(tmp_path: Path) -> None:
    other = tmp_path / "other.jsa"
    other.write_bytes(b"of another Java" * 10_000)
    options = [f"-XX:SharedArchiveFile={other}", *jvm_options.QUIET.split()]
    java = Path(os.environ.get("JAVA_HOME", "/usr"), "bin", "java")
    plain = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    told = subprocess.run([java, *options, "-version"], capture_output=True, text=True, check=True)
    assert told.stdout == plain.stdout
    assert "openjdk version" in told.stderr


def test_what_keeps_it_from_being_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(class_archive, "ARCHIVE", tmp_path / "share" / "spark-classes.jsa")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert class_archive.main() == 1
    assert "The classes of Spark are not archived: " in capsys.readouterr().err
    assert not list((tmp_path / "share").iterdir())
