"""The places, streams and results of a notebook."""

import sys
from dataclasses import replace
from threading import Event
from types import ModuleType, SimpleNamespace

import pytest

from tests.waiting import TIMEOUT_S, wait_until
from weir.datastream import CloseableIterator, JobExecutionResult, StreamExecutionEnvironment
from weir.ids import CheckpointId, JobId
from weir.jobmaster.collected_output import RowStream
from weir.jobmaster.history import JobHistory

RESULT = JobExecutionResult(
    job_id=JobId("count-1"), name="a <count>", net_runtime_ms=1_234, collected=(1, 2)
)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which IPython compiled cell 3 under a name of its own."""
    ipython = ModuleType("IPython")
    compiled = SimpleNamespace(_filename_map={"/tmp/ipykernel_7/90210.py": 3})
    shell = SimpleNamespace(
        compile=compiled, custom_exceptions=(), set_custom_exc=lambda kinds, handler: None
    )
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)


def test_an_operator_of_a_cell_is_named_by_the_cell(notebook: None) -> None:
    names = {
        "env": StreamExecutionEnvironment.get_execution_environment(),
        "__name__": "__main__",
    }
    code = "numbers = env.from_collection([1])\ndoubled = numbers.map(lambda n: 2 * n)"
    exec(compile(code, "/tmp/ipykernel_7/90210.py", "exec"), names)
    assert repr(names["doubled"]) == "<DataStream of 'Map' (cell 3:2)>"


def test_a_stream_shows_the_way_of_its_records() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).map(lambda n: n).name("<b>").key_by(lambda n: n)
    shown = stream._repr_html_()
    assert shown.startswith("<code>KeyedStream</code> &#x27;Collection Source&#x27; (test_noteb")
    assert "→ &#x27;&lt;b&gt;&#x27; (test_notebooks.py:" in shown


def test_a_result_shows_its_job_in_a_table() -> None:
    assert RESULT._repr_html_() == (
        "<table><caption>a &lt;count&gt;</caption><tr><th>job</th><td>count-1</td></tr>"
        "<tr><th>ran</th><td>1.2 s</td></tr><tr><th>collected</th><td>2 records</td></tr></table>"
    )


def test_a_result_prints_as_one_line_without_its_history() -> None:
    assert repr(replace(RESULT, history=JobHistory())) == (
        "JobExecutionResult(job_id='count-1', name='a <count>', net_runtime_ms=1234, "
        "collected=(1, 2))"
    )


def test_records_that_come_show_whether_their_job_runs() -> None:
    rows, ends = RowStream(), Event()

    def run() -> None:
        rows.add(CheckpointId(1), ["a", "b"])
        assert ends.wait(TIMEOUT_S)

    def shown(job: str, count: int) -> str:
        return (
            f"<table><caption>CloseableIterator</caption><tr><th>job</th><td>{job}</td></tr>"
            f"<tr><th>not read yet</th><td>{count} records</td></tr></table>"
        )

    records = CloseableIterator(rows, run)
    assert next(records) == "a"
    assert records._repr_html_() == shown("runs", 1)
    ends.set()
    wait_until(lambda: records._repr_html_() == shown("ended", 1), "the job has ended")
    records.close()
    assert records._repr_html_() == shown("closed", 0)
