"""Secrets of a process: from the environment, from a file, and from the launcher's pipe."""

import json
import os
from pathlib import Path

import pytest

from weir.datastream import StreamExecutionEnvironment
from weir.errors import ConfigError
from weir.secrets import job_secrets
from weir.secrets.masking import MASK, Masker

NAME = "WAREHOUSE_PASSWORD"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that knows no secrets yet."""
    monkeypatch.setattr(job_secrets, "_handed", None)
    monkeypatch.setattr(job_secrets, "_known", {})
    monkeypatch.setattr(job_secrets, "_masker", Masker())
    for name in list(os.environ):
        if name.startswith(job_secrets.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.delenv(job_secrets.HANDED, raising=False)


def handed(values: object) -> str:
    """The launcher's variable for a pipe with these values."""
    read, write = os.pipe()
    os.write(write, json.dumps(values).encode())
    os.close(write)
    return f"{read}:{os.fstat(read).st_ino}"


def test_a_secret_is_read_from_the_environment_and_masked_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"WEIR_SECRET_{NAME}", "hunter22")
    assert StreamExecutionEnvironment().get_secret(NAME) == "hunter22"
    assert job_secrets.job_secrets() == {NAME: "hunter22"}
    assert job_secrets.masker().text("is hunter22") == f"is {MASK}"


def test_a_secret_is_read_from_a_file_without_its_last_line_break(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(" two\nlines\n")
    monkeypatch.setenv(f"WEIR_SECRET_{NAME}_FILE", str(file))
    assert job_secrets.get_secret(NAME) == " two\nlines"
    assert job_secrets.job_secrets() == {NAME: " two\nlines"}


def test_a_secret_that_is_given_twice_or_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"WEIR_SECRET_{NAME}_FILE", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=f"WEIR_SECRET_{NAME}_FILE=.*cannot be read"):
        job_secrets.job_secrets()
    monkeypatch.setenv(f"WEIR_SECRET_{NAME}", "x")
    with pytest.raises(ConfigError, match="both set; keep one"):
        job_secrets.get_secret(NAME)


@pytest.mark.parametrize("mode", ["library", "managed"])
def test_an_unknown_secret_says_how_to_set_it_in_either_mode(mode: str) -> None:
    if mode == "managed":
        job_secrets.hold({})
    with pytest.raises(ConfigError) as refused:
        job_secrets.get_secret(NAME)
    said = str(refused.value)
    assert f"set WEIR_SECRET_{NAME}, or WEIR_SECRET_{NAME}_FILE" in said
    assert f'submit the job with "secrets": ["{NAME}"]' in said


@pytest.mark.parametrize("name", ["", "1st", "with-dash", "A_FILE", "x" * 65, "ü", "A\n"])
def test_a_name_that_is_no_variables_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a name has 1 to 64 letters"):
        job_secrets.get_secret(name)


def test_handed_secrets_are_taken_once_and_replace_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEIR_SECRET_OTHER", "from the environment")
    mark = handed({NAME: "hunter22"})
    monkeypatch.setenv(job_secrets.HANDED, mark)
    assert job_secrets.receive([NAME])
    assert job_secrets.get_secret(NAME) == "hunter22"
    assert job_secrets.job_secrets() == {NAME: "hunter22"}
    assert job_secrets.HANDED not in os.environ
    with pytest.raises(ConfigError, match="has no secret OTHER"):
        job_secrets.get_secret("OTHER")
    monkeypatch.setenv(job_secrets.HANDED, mark)
    with pytest.raises(ConfigError, match="are lost"):
        job_secrets.receive([NAME])


def test_a_file_that_has_the_pipes_number_by_accident_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    try:
        monkeypatch.setenv(job_secrets.HANDED, f"{read}:{os.fstat(read).st_ino + 1}")
        with pytest.raises(ConfigError, match="neither this process nor its parent has the pipe"):
            job_secrets.receive()
    finally:
        os.close(read)
        os.close(write)


def test_a_job_that_needs_more_than_was_handed_over_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not job_secrets.receive()
    with pytest.raises(ConfigError, match="handed over no value of WAREHOUSE_PASSWORD"):
        job_secrets.receive([NAME])
    monkeypatch.setenv(job_secrets.HANDED, handed({"OTHER": "x"}))
    with pytest.raises(ConfigError, match="handed over no value of WAREHOUSE_PASSWORD"):
        job_secrets.receive([NAME])
