import os
import sys
from pathlib import Path

from weir.spark.python_daemon import MODULE, SETTING, settings_for


def test_workers_of_the_drivers_own_python_are_forked_from_the_loaded_runtime() -> None:
    assert settings_for(sys.executable) == {SETTING: MODULE}


def test_another_environments_python_may_lack_the_runtime(tmp_path: Path) -> None:
    """Also where it is a link to the same interpreter, as in a virtual environment."""
    link = tmp_path / "python"
    link.symlink_to(os.path.realpath(sys.executable))
    assert settings_for(str(link)) == {}
    assert settings_for(str(tmp_path / "none")) == {}
