"""A pipeline as bytes: what a slot gets, and what cannot be sent."""

import pickle
import sys
import threading
from pathlib import Path

import pytest

from tests.builders import graph, node
from weir.config import JobConfig
from weir.errors import UserError
from weir.spark.program import dump_program


def test_graph_and_settings_arrive_as_they_were() -> None:
    name = "reader"
    sent = graph([node("source", 3, factory=lambda: f"hello {name}")])
    got, config = pickle.loads(dump_program(sent, JobConfig(name="words", parallelism=3)))
    assert (config.name, config.parallelism) == ("words", 3)
    assert got.operators[0].parallelism == 3
    assert got.operators[0].factory() == "hello reader"


def test_edges_keep_their_identity_since_gates_are_found_by_it() -> None:
    from tests.unit.graph.test_physical import WORDS

    got, _ = pickle.loads(dump_program(WORDS, JobConfig()))
    assert len({id(edge) for edge in got.edges}) == len(WORDS.edges)


def test_modules_beside_the_script_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    program = dump_program(graph([node("source")]), JobConfig())
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    pickle.loads(program)
    assert sys.path[-1] == str(tmp_path)


def test_directories_that_are_not_there_stay_off_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.syspath_prepend(str(gone))
    program = dump_program(graph([node("source")]), JobConfig())
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(gone)])
    gone.rmdir()
    pickle.loads(program)
    assert str(gone) not in sys.path


def test_what_cannot_be_sent_is_refused_with_advice() -> None:
    lock = threading.Lock()
    with pytest.raises(UserError, match=r"cannot be sent to the slots: .*lock.*in open\(\)"):
        dump_program(graph([node("source", factory=lambda: lock)]), JobConfig())
