"""``weir compare-modes``: runs in this process, its answer, its page, and what it refuses."""

import json
import re
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pytest

from weir.cli import compare_modes
from weir.cli.arguments import parser
from weir.cli.mode_page import make_figures, plotly_bundle, write_page
from weir.datastream.connectors import ParquetSink
from weir.errors import ConfigError, UserError
from weir.tools.checkpoint_modes import MODES

PIPELINE = """
    import time
    from pathlib import Path

    from weir.common import WatermarkStrategy
    from weir.datastream import StreamExecutionEnvironment
    from weir.datastream.connectors import NumberSequenceSource, ParquetSink

    HERE = Path(__file__).parent


    def slow(number):
        time.sleep(0.001)
        return number


    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().set_checkpoint_storage(str(HERE / "checkpoints"))
    source = NumberSequenceSource(1, int(env.get_job_parameter("last", "1000000000")))
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    slowed = numbers.key_by(lambda number: number % 10).map(slow)
    slowed.map(lambda number: {"number": number}).sink_to(ParquetSink(HERE / "output"))
    slowed.print()
    print("script: built")
    env.execute("slow </script> sink")
    print("script: over")
"""


def pipeline(directory: Path, text: str = PIPELINE) -> Path:
    file = directory / "pipeline.py"
    file.write_text(dedent(text))
    return file


def compare(*words: str | Path, master: str = "in-process") -> int:
    given = ["compare-modes", *map(str, words), "--master", master]
    return compare_modes.run(parser().parse_args(given))


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(capsys.readouterr().out)
    return whole


def page_figures(page: str) -> list[dict[str, Any]]:
    match = re.search(r"^const figures = (.*);$", page, re.MULTILINE)
    assert match is not None
    figures: list[dict[str, Any]] = json.loads(match[1])
    return figures


def test_two_modes_run_and_touch_nothing_of_the_pipelines_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under back pressure an unaligned checkpoint is done while an aligned one waits."""
    file, storage = pipeline(tmp_path), tmp_path / "trials"
    storage.mkdir()
    page = tmp_path / "modes.html"
    code = compare(
        *(file, "--modes", "unaligned,aligned", "--seconds", "3", "--interval", "100ms"),
        *("--storage", storage, "--html", page, "--json"),
    )
    whole = answer(capsys)
    assert code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "modes.html",
        "pipeline.py",
        "trials",
    ]
    assert list(storage.iterdir()) == []
    aligned, unaligned = whole.pop("modes")
    assert whole == {
        "pipeline": str(file),
        "job": "slow </script> sink",
        "master": "in-process",
        "parallelism": 1,
        "seconds_max": 3,
        "rounds": 1,
        "interval_ms": 100,
        "timeout_ms": 200,
    }
    assert (aligned["mode"], unaligned["mode"]) == ("aligned", "unaligned")
    for mode in (aligned, unaligned):
        assert mode["failures"] == []
        assert 3 <= mode["running_s"] < 20
        assert 0 < mode["sink_records_per_s"]["median"] < 1_000  # A millisecond for each.
    assert unaligned["completed"] == unaligned["unaligned"] >= 3
    assert unaligned["in_flight_bytes"]["median"] > 0
    assert unaligned["duration_ms"]["count"] == len(unaligned["durations_ms"])
    assert aligned["unaligned"] == 0
    assert aligned["cut_off_longest_ms"] > unaligned["duration_ms"]["median"]
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert "<h1>Modes of checkpoints: slow &lt;/script&gt; sink</h1>" in text
    assert [f["layout"]["title"]["text"] for f in page_figures(text)] == [
        "Throughput",
        "Duration of checkpoints",
        "Barrier to sinks",
        "Size of a checkpoint, median",
    ]


def test_the_table_has_a_column_for_each_mode_and_rounds_alternate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job ends by itself; the order of the runs is on standard error."""
    code = compare(
        *(pipeline(tmp_path), "--modes", "none,timeout", "--rounds", "2", "--timeout", "50ms"),
        *("--arg", "last=300", "--interval", "100ms"),
    )
    said = capsys.readouterr()
    assert code == 0
    runs = re.findall(r"round (\d) of 2: (.*), 20 s at most", said.err)
    none, timeout = "no checkpoints", "aligned, then unaligned"
    assert runs == [("1", none), ("1", timeout), ("2", timeout), ("2", none)]
    assert said.err.count("script: over") == 5  # Built once for the settings, once for each run.
    lines = said.out.splitlines()
    assert lines[0].startswith("slow </script> sink, parallelism 1, a checkpoint every 100 ms")
    assert re.split(r"\s{2,}", lines[1].strip()) == ["no checkpoints", "aligned for 50 ms"]
    cells = {cell[0]: cell[1:] for line in lines[3:] if (cell := re.split(r"\s{2,}", line.strip()))}
    assert cells["runs failed"] == ["0 of 2", "0 of 2"]
    assert len(cells["… least / most of the rounds"]) == 2
    assert cells["checkpoints completed"][0] == "-"
    assert int(cells["checkpoints completed"][1]) >= 2
    assert "script" not in said.out.replace("slow </script> sink", "")
    assert len(lines) == 3 + len(compare_modes.ROWS)
    assert re.findall(r"^\d+$", said.out + said.err, re.MULTILINE) == []  # The sink's lines.


def test_a_mode_that_fails_is_told_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline(
        tmp_path,
        PIPELINE.replace("time.sleep(0.001)", "assert number < 50, 'too many'"),
    )
    code = compare(file, "--modes", "none,aligned", "--seconds", "2", "--interval", "100ms")
    said = capsys.readouterr()
    assert code == 1
    assert "too many" in said.err
    assert "1 of 1" in next(line for line in said.out.splitlines() if "runs failed" in line)
    assert "2 s at most" in said.err.partition("too many")[2]  # The second mode, after that.


def test_ctrl_c_ends_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pipeline(tmp_path, PIPELINE.replace("time.sleep(0.001)", "raise KeyboardInterrupt"))
    assert compare(file, "--modes", "none,aligned") == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("20 s at most") == 1


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--modes", "stop"], "no mode 'stop'; there are none, stop-the-world, aligned"),
        (["--modes", "none,none"], "named twice"),
        (["--seconds", "3", "--interval", "2s"], "not 2 checkpoints at an interval of 2.0 s"),
        (["--interval", "1ms"], "checkpoint interval is 1 ms; it takes milliseconds, at least 10"),
        (["--storage", "/no/such/directory"], "--storage: there is no directory /no/such"),
        (["--html", "/no/such/page.html"], "--html: there is no directory /no/such"),
    ],
)
def test_settings_that_measure_nothing_are_refused_before_a_run(
    words: list[str], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        compare(pipeline(tmp_path), *words)
    assert advice in str(raised.value)
    assert "at most" not in capsys.readouterr().err


def test_other_machines_need_a_directory_that_they_reach(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--master yarn has other machines: give --storage"):
        compare(pipeline(tmp_path), master="yarn")


def test_a_script_of_several_jobs_is_refused(tmp_path: Path) -> None:
    text = dedent(PIPELINE)
    build = text[text.index("source =") :]
    with pytest.raises(UserError, match=r"several jobs, .*only one can be compared"):
        compare(pipeline(tmp_path, text + build))


def test_a_sink_whose_files_cannot_go_elsewhere_is_refused(tmp_path: Path) -> None:
    own = """
    from weir.datastream.connectors import Sink

    class Own(ParquetSink):
        def moved_below(self, directory):
            return Sink.moved_below(self, directory)
    """
    text = dedent(PIPELINE).replace("ParquetSink(HERE", "Own(HERE")
    text = text.replace("env = Stream", dedent(own) + "\nenv = Stream")
    with pytest.raises(ConfigError, match=rf"^Own writes files to {tmp_path}/output and cannot"):
        compare(pipeline(tmp_path, text))
    assert not (tmp_path / "output").exists()


def test_a_moved_sink_keeps_its_settings_and_the_given_one_its_place(tmp_path: Path) -> None:
    schema = pa.schema({"number": pa.int64()})
    given = ParquetSink(tmp_path / "here", rows_per_file=7, schema=schema)
    moved = given.moved_below(str(tmp_path / "there"))
    assert isinstance(moved, ParquetSink)
    assert (moved.commits_to, moved.rows_per_file) == (str(tmp_path / "there"), 7)
    assert moved.schema is schema
    assert given.commits_to == str(tmp_path / "here")


def test_a_script_that_raises_before_its_job_shows_its_own_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(pipeline(tmp_path, "raise ValueError('no input given')")) == 2
    said = capsys.readouterr().err
    assert "ValueError: no input given" in said
    assert "weir/cli" not in said


def document() -> dict[str, Any]:
    spread = {"median": 5.0, "least": 4.0, "most": 7.0}
    values = {"count": 2, "median": 2.0, "p95": 3.0, "p99": 3.0, "most": 3.0}
    measured: dict[str, Any] = {
        "source_records_per_s": spread,
        "sink_records_per_s": spread,
        "durations_ms": (2.0, 3.0),
        "cut_off_longest_ms": 9.0,
        "barrier_to_sinks_ms": values,
        "state_bytes": values,
        "in_flight_bytes": values,
    }
    empty = dict.fromkeys(measured) | {"durations_ms": ()}
    return {
        "pipeline": "p.py",
        "job": "<b> & </script>",
        "master": "local",
        "parallelism": 2,
        "seconds_max": 3,
        "rounds": 1,
        "interval_ms": 100,
        "modes": [empty, measured],
    }


def test_figures_show_what_was_measured_and_gaps_where_nothing_was() -> None:
    throughput, durations, travel, sizes = make_figures(document(), ["none", "aligned"])
    sources = throughput["data"][0]
    assert (sources["x"], sources["y"]) == (["none", "aligned"], [None, 5.0])
    assert (sources["error_y"]["array"], sources["error_y"]["arrayminus"]) == ([0, 2], [0, 1])
    none, aligned, lost = durations["data"]
    assert (none["y"], aligned["y"]) == ([], [2.0, 3.0])
    assert (lost["x"], lost["y"]) == (["aligned"], [9.0])
    assert [bars["y"] for bars in travel["data"]] == [[None, 2.0], [None, 3.0], [None, 3.0]]
    assert [bars["y"] for bars in sizes["data"]] == [[None, 2.0], [None, 2.0]]


def test_the_page_loads_nothing_and_no_name_ends_its_script(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    titles = ["", "</script><b>", "aligned"]
    write_page(file, plotly_bundle(), document(), [titles, ["rate", "-", "5/s"]])
    page, bundle = file.read_text(), plotly_bundle().read_text()
    assert bundle in page
    own = page.replace(bundle, "")
    assert re.findall(r"https?:|\bsrc\b|<link|@import", own) == []
    assert own.count("</script>") == 2
    assert page_figures(own)[0]["data"][0]["x"] == titles[1:]
    assert "<td>5/s</td>" in own
    assert len(page) < 6_000_000


def test_a_page_needs_plotly_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ConfigError, match="pip install 'plotly"):
        compare(pipeline(tmp_path), "--html", tmp_path / "page.html")


def test_the_help_names_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["compare-modes", "--help"])
    shown = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # Wrapped at hyphens.
    assert f"only these modes: {', '.join(mode.name for mode in MODES)}" in shown
