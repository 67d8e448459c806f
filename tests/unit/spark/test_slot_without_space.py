"""The directory of a slot's local copies where the disk has no room for it."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from weir.errors import ConfigError
from weir.spark import slot
from weir.storage.local_directory import COPIES, LocalDirectory


@pytest.mark.parametrize(
    ("number", "goes_on"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_slot_goes_on_without_copies_for_want_of_space_alone(
    number: int, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**where: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    with pytest.raises(ConfigError, match="local copies of state cannot be kept") as raised:
        LocalDirectory(str(tmp_path), COPIES)
    assert slot._is_for_want_of_space(raised.value) is goes_on
