import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from weir.common.stderr_log import log_to_stderr


@contextmanager
def unconfigured() -> Iterator[logging.Logger]:
    """Weir's logger in a program that has configured nothing."""
    room, root = logging.getLogger("weir"), logging.getLogger()
    kept = room.handlers[:], room.level, root.handlers[:]
    room.handlers, root.handlers = [], []
    room.setLevel(logging.NOTSET)
    try:
        yield room
    finally:
        room.handlers, root.handlers = kept[0], kept[2]
        room.setLevel(kept[1])


def test_lines_go_to_standard_error_where_nothing_is_configured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with unconfigured():
        log_to_stderr()
        log_to_stderr()
        logging.getLogger("weir.jobs").info("it runs")
    assert capsys.readouterr().err == "weir: it runs\n"


def test_a_level_of_the_programs_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured() as room:
        room.setLevel(logging.ERROR)
        log_to_stderr()
        logging.getLogger("weir.jobs").warning("it restarts")
    assert capsys.readouterr().err == ""


def test_handlers_of_the_programs_take_the_place_of_weirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    with unconfigured():
        log_to_stderr()
        logging.getLogger().handlers = [handler]  # As logging.basicConfig does.
        logging.getLogger("weir.jobs").info("it runs")
    assert (lines, capsys.readouterr().err) == (["it runs"], "")
