"""A driver's log: every line says whose it is."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from weir.managed.driver_log import log_to

logger = logging.getLogger("weir.some.place")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, py4j = list(root.handlers), root.level, logging.getLogger("py4j").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("py4j").setLevel(py4j)


def test_a_line_is_an_object_with_job_and_driver() -> None:
    stream = io.StringIO()
    log_to(stream, "job-1", 3, plain=False)
    logger.info("checkpoint %d\ncompleted", 7)
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["job"], first["driver"], first["level"]) == ("job-1", 3, "info")
    assert first["message"] == "checkpoint 7\ncompleted"
    assert first["logger"] == "weir.some.place"
    assert second["level"] == "error"
    assert "ValueError: broken" in second["traceback"]


def test_a_plain_line_survives_any_name() -> None:
    stream = io.StringIO()
    log_to(stream, "100%s", 3, plain=True)
    logger.warning("careful")
    logger.debug("not needed")
    (line,) = stream.getvalue().splitlines()
    assert "WARNING 100%s/3 weir.some.place: careful" in line
