"""Every room of Weir but the examples is Weir's own in a stack."""

from pathlib import Path

import pytest

import weir
from weir.own_frames import MODULES, OWN_FRAME, ROOMS

ROOT = Path(weir.__file__).parent


def test_every_room_and_module_is_listed() -> None:
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert "examples" in rooms
    assert rooms - {"examples"} == set(ROOMS) - {"runtime"}
    assert {path.stem for path in ROOT.glob("*.py")} == set(MODULES)


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("/srv/env/lib/python3.11/site-packages/weir/worker/subtask.py", True),
        ("C:\\env\\weir\\operators\\sinks\\parquet_sink.py", True),
        ("/x/weir/errors.py", True),
        ("/x/weir/examples/flights.py", False),
        ("/srv/me/weir/pipeline.py", False),
        ("/srv/me/weirdness/worker/pipeline.py", False),
    ],
)
def test_paths_decide(file: str, is_own: bool) -> None:
    assert bool(OWN_FRAME.search(file)) is is_own
