"""Results of the soak: lines that outlive a kill, the place to go on, the table."""

from pathlib import Path
from typing import Any

import pytest

from tests.soak.__main__ import main, told
from tests.soak.results import Log, Outcome, Result, next_seed, parse, seconds_left, table
from tests.soak.schedule import Where


def struck(kind: str, *, fired: bool = True, attempts: int = 1) -> dict[str, Any]:
    return {
        "kind": kind, "fired": fired, "recovered": fired, "attempts": attempts, "told": "",
    }  # fmt: skip


def result(seed: int, where: Where = Where.SPARK, **changed: Any) -> Result:
    given: dict[str, Any] = {
        "outcome": Outcome.GOOD,
        "seconds": 30.0,
        "struck": [struck("kill worker")],
        "looks": 1,
    }
    return Result(seed=seed, where=where, **given | changed)


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "results.jsonl")
    results = [result(7), result(8, Where.PLANE, outcome=Outcome.FINDING, wrong=["lost"])]
    for one in results:
        log.append(one)
    assert Log.open(log.path).results == results == log.results


def test_a_line_that_a_kill_cut_off_costs_its_round_alone(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "results.jsonl")
    log.append(result(7))
    whole = log.path.read_text()
    log.append(result(8))
    log.path.write_text(log.path.read_text()[:-20])
    resumed = Log.open(log.path)
    assert resumed.results == [result(7)]
    assert log.path.read_text() == whole
    assert next_seed(7, resumed.results) == 8
    resumed.append(result(8))
    assert Log.open(log.path).results == [result(7), result(8)]


def test_a_foreign_line_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1 is no result of a soak"):
        parse('{"seed": 1, "colour": "red"}\n')


def test_the_first_round_has_the_first_seed() -> None:
    assert next_seed(42, []) == 42


def test_time_is_counted_for_each_place() -> None:
    results = [result(1), result(2, seconds=12.5), result(3, Where.PLANE, seconds=100.0)]
    assert seconds_left(1, Where.SPARK, results) == 17.5
    assert seconds_left(1, Where.PLANE, results) == -40.0


def test_the_table_counts_every_kind_apart() -> None:
    results = [
        result(1, struck=[struck("kill worker"), struck("full disk", attempts=5)]),
        result(2, struck=[struck("kill worker", fired=False, attempts=0)], outcome=Outcome.CALM),
        result(3, outcome=Outcome.FINDING, lost=3, duplicated=2, out_of_order=1, unneeded=4),
        result(4, Where.PLANE, struck=[struck("kill web", attempts=0)]),
    ]
    assert table(results).splitlines() == [
        "spark: 3 rounds in 1.5 minutes: good 1, nothing fired 1, finding 1",
        "kind of fault  planned  fired  recovered  restores",
        "full disk            1      1          1         5",
        "kill worker          3      2          2         2",
        "all                  4      3          3         7",
        "lost 3, duplicated 2, out of order 1, files unneeded 4, looks at a storage 3",
        "",
        "control-plane: 1 rounds in 0.5 minutes: good 1, nothing fired 0, finding 0",
        "kind of fault  planned  fired  recovered  restores",
        "kill web             1      1          1         0",
        "all                  1      1          1         0",
        "lost 0, duplicated 0, out of order 0, files unneeded 0, looks at a storage 1",
    ]


def test_a_line_names_faults_that_did_not_fire_and_all_that_is_wrong() -> None:
    one = result(3, struck=[struck("stop jvm", fired=False)], wrong=["lost: 3"])
    assert told(one).endswith("stop jvm (not fired)\n    lost: 3")


def test_only_results_of_a_soak_are_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--resume", str(tmp_path)])
    assert "has no results of a soak" in capsys.readouterr().err
