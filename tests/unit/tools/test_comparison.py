"""Two outputs, held against one another."""

import datetime as dt
import json
import math
import random
from argparse import Namespace
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.cli import compare as command
from weir.errors import ConfigError, CorruptStateError
from weir.tools import output_comparison
from weir.tools.output_comparison import Comparison, compare


class Output:
    """A sink's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = 0
        path.mkdir(parents=True)

    def commit(self, columns: dict[str, Any] | pa.Table, directory: str = ".") -> "Output":
        """A file of these columns, committed unless it goes elsewhere."""
        file = self.path / directory / f"part-sink-0-{self._files + 1}-0.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        self._files += 1
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), file)
        return self


@pytest.fixture
def left(tmp_path: Path) -> Output:
    return Output(tmp_path / "left")


@pytest.fixture
def right(tmp_path: Path) -> Output:
    return Output(tmp_path / "right")


def outcome(comparison: Comparison) -> tuple[int, int, int, int]:
    """Equal, different, only left, only right."""
    return comparison.equal, comparison.different, comparison.left.only, comparison.right.only


def test_the_same_rows_in_other_files_and_order_are_equal(left: Output, right: Output) -> None:
    left.commit({"k": [1, 2], "v": [0.5, None]}).commit({"k": [3], "v": [math.nan]})
    right.commit({"v": [math.nan, 0.5, None], "k": [3, 1, 2]})
    comparison = compare(left.path, right.path)
    assert outcome(comparison) == (3, 0, 0, 0)
    assert comparison.is_equal
    assert comparison.key == ("k",)  # What is no floating point number.


def test_every_way_to_differ_is_counted_and_shown(left: Output, right: Output) -> None:
    left.commit({"k": [1, 2, 3, None], "n": [10, 20, 30, 40], "s": ["a", "b", "c", "d"]})
    right.commit({"k": [1, 2, None, 5], "n": [10, 27, 40, 50], "s": ["a", "B", None, "e"]})
    comparison = compare(left.path, right.path, key=["k"])
    assert outcome(comparison) == (1, 2, 1, 1)
    assert not comparison.is_equal
    assert [(c.name, c.count, c.largest) for c in comparison.columns] == [
        ("n", 1, 7.0),
        ("s", 2, None),
    ]
    assert comparison.only_left == [{"k": 3, "n": 30, "s": "c"}]
    assert comparison.only_right == [{"k": 5, "n": 50, "s": "e"}]
    assert comparison.differing == [
        {"key": {"k": 2}, "columns": {"n": [20, 27], "s": ["b", "B"]}},
        {"key": {"k": None}, "columns": {"s": ["d", None]}},
    ]


def test_only_committed_files_count(left: Output, right: Output) -> None:
    left.commit({"k": [1]}).commit({"k": [2]}, "_pending/job/1").commit({"k": [3]}, "_withdrawn/j")
    (left.path / "notes.parquet").write_bytes(b"?")
    right.commit({"k": [1]})
    assert outcome(compare(left.path, right.path)) == (1, 0, 0, 0)


def test_a_row_that_is_there_twice_has_to_be_there_twice(left: Output, right: Output) -> None:
    left.commit({"k": [1, 1, 1, 2], "v": [1.0, 1.0, 2.0, 3.0]})
    right.commit({"k": [1, 1, 2, 2], "v": [1.0, 2.0, 3.0, 4.0]})
    comparison = compare(left.path, right.path, key=["k"])
    assert outcome(comparison) == (3, 0, 1, 1)
    assert (comparison.left.duplicates, comparison.right.duplicates) == (2, 2)
    assert comparison.twice_left == [{"row": {"k": 1}, "count": 3}]
    assert comparison.only_left == [{"k": 1, "v": 1.0}]


def test_a_fork_that_is_behind_is_not_called_wrong(left: Output, right: Output) -> None:
    """The fork began with window 20 and has written a part of window 40."""
    windows = [10, 20, 30, 40, 50]
    left.commit({"k": ["a", "b"] * 5, "w": [w for w in windows for _ in "ab"], "n": range(10)})
    right.commit({"k": ["a", "b", "a", "b", "a"], "w": [20, 20, 30, 30, 40], "n": [2, 3, 4, 5, 6]})
    comparison = compare(left.path, right.path, key=["k"], window=["w"])
    assert comparison.is_equal
    assert outcome(comparison) == (5, 0, 0, 0)
    assert (comparison.left.earlier, comparison.left.later) == (2, 3)
    assert (comparison.complete_from, comparison.complete_to) == ("20", "40")
    mirrored = compare(right.path, left.path, key=["k"], window=["w"])
    assert (mirrored.right.earlier, mirrored.right.later, mirrored.is_equal) == (2, 3, True)


def test_what_is_missing_before_the_last_common_window_is_missing(
    left: Output, right: Output
) -> None:
    left.commit({"k": [1, 2, 1, 2, 1], "w": [10, 10, 20, 20, 30]})
    right.commit({"k": [1, 1, 2], "w": [10, 20, 20]})
    assert outcome(compare(left.path, right.path, key=["k"], window=["w"])) == (3, 0, 1, 0)
    # Neither is behind: then the last window counts as well.
    left_over = compare(right.path, right.path, key=["k"], window=["w"])
    assert left_over.is_equal


def test_in_the_last_window_of_both_nothing_may_be_missing(left: Output, right: Output) -> None:
    left.commit({"k": [1, 2], "w": [10, 10]})
    right.commit({"k": [1], "w": [10]})
    assert outcome(compare(left.path, right.path, key=["k"], window=["w"])) == (1, 0, 1, 0)


def test_an_output_that_has_not_begun_is_only_behind(left: Output, right: Output) -> None:
    left.commit({"k": [1, 2], "w": [dt.datetime(2026, 1, 1), None]})
    comparison = compare(left.path, right.path, window=["w"])
    assert (comparison.is_equal, comparison.left.later, comparison.right.rows) == (True, 2, 0)
    assert comparison.left.last == "2026-01-01 00:00:00"
    assert outcome(compare(left.path, right.path)) == (0, 0, 2, 0)
    assert compare(right.path, right.path).is_equal


def test_types_that_mean_the_same_are_the_same(left: Output, right: Output) -> None:
    left.commit(
        pa.table(
            {
                "k": pa.array([1, 2], pa.int32()),
                "s": pa.array(["a", "b"]).dictionary_encode(),
                "l": [[1, 2], None],
                "d": [Decimal("1.50"), Decimal("2.00")],
                "b": [b"\0", b"\1"],
                "none": pa.nulls(2),
            }
        )
    )
    right.commit(
        pa.table(
            {
                "k": pa.array([2, 1], pa.int64()),
                "s": pa.array(["b", "a"], pa.large_string()),
                "l": [None, [1, 2]],
                "d": [Decimal("2.25"), Decimal("1.50")],
                "b": [b"\1", b"\0"],
                "none": pa.nulls(2),
            }
        )
    )
    comparison = compare(left.path, right.path, key=["k"])
    assert outcome(comparison) == (1, 1, 0, 0)
    assert {c.name: (c.count, c.largest) for c in comparison.columns if c.count} == {"d": (1, 0.25)}


def test_a_column_of_one_side_is_named_and_not_equal(left: Output, right: Output) -> None:
    left.commit({"k": [1]})
    right.commit({"k": [1], "new": [2]})
    comparison = compare(left.path, right.path)
    assert (comparison.right.columns, comparison.equal, comparison.is_equal) == (("new",), 1, False)


def test_unknown_columns_and_directories_are_refused_in_words(
    tmp_path: Path, left: Output, right: Output
) -> None:
    left.commit({"k": [1], "v": [[1]]})
    right.commit({"k": [1], "v": [[1]]})
    with pytest.raises(ConfigError, match=r"no column wrong .*left has k, v"):
        compare(left.path, right.path, key=["wrong"])
    with pytest.raises(ConfigError, match="no directory"):
        compare(left.path, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"several sinks.*left, right"):
        compare(tmp_path, right.path)
    right.commit({"k": ["text"], "v": [[1]]})
    with pytest.raises(ConfigError, match="cannot be compared"):
        compare(left.path, right.path)


def test_a_damaged_file_is_named(left: Output, right: Output) -> None:
    (left.path / "part-sink-0-1-0.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptStateError, match=r"part-sink-0-1-0\.parquet"):
        compare(left.path, right.path)


@pytest.mark.parametrize("seed", range(20))
def test_any_two_outputs_in_any_number_of_passes_give_what_counting_gives(
    left: Output, right: Output, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)

    def rows(count: int) -> list[tuple[str | None, int, int]]:
        keys = ["a", "b", "c", "d", None]
        return [(draw.choice(keys), draw.randrange(4), draw.randrange(3)) for _ in range(count)]

    ours, theirs = rows(draw.randrange(1, 60)), rows(draw.randrange(1, 60))
    for output, made in ((left, ours), (right, theirs)):
        for part in (made[::2], made[1::2]):
            columns = {n: [row[i] for row in part] for i, n in enumerate("kwv")}
            types = (pa.string(), pa.int64(), pa.int64())
            output.commit(pa.table(columns, schema=pa.schema(list(zip("kwv", types, strict=True)))))
    monkeypatch.setattr(output_comparison, "PASS_ROWS", draw.choice([5, 20, 1_000]))
    comparison = compare(left.path, right.path, key=["k"], window=["w"], limit=3)

    low = max(min(r[1] for r in ours), min(r[1] for r in theirs))
    tops = max(r[1] for r in ours), max(r[1] for r in theirs)
    mine, others = (Counter(r for r in made if low <= r[1] <= min(tops)) for made in (ours, theirs))
    equal = sum((mine & others).values())
    in_keys = [
        Counter(r[:2] for r in (one - two).elements())
        for one, two in ((mine, others), (others, mine))
    ]
    paired = sum((in_keys[0] & in_keys[1]).values())
    single = [one - two for one, two in (in_keys, in_keys[::-1])]
    late = [0, 0]
    for index in (0, 1):
        if tops[1 - index] < tops[index]:
            late[index] = sum(n for key, n in single[index].items() if key[1] == min(tops))
    only = [sum(one.values()) - n for one, n in zip(single, late, strict=True)]
    assert outcome(comparison) == (equal, paired, *only)
    assert (
        comparison.left.rows
        == sum(mine.values()) + comparison.left.earlier + comparison.left.later - late[0]
    )
    assert comparison.left.duplicates == sum(mine.values()) - len({r[:2] for r in mine})
    assert len(comparison.only_left) == min(3, only[0])


def test_a_rollback_that_takes_files_away_is_waited_out(
    left: Output, right: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file was listed and gone when it was opened: the listing is made anew."""
    left.commit({"k": [1]}).commit({"k": [2]})
    right.commit({"k": [1]})
    listed = output_comparison.committed_files
    calls = []

    def listing(directory: Path) -> list[Path]:
        comparison = listed(directory)
        calls.append(directory)
        if len(calls) == 1:
            comparison[-1].unlink()
        return comparison

    monkeypatch.setattr(output_comparison, "committed_files", listing)
    assert compare(left.path, right.path).is_equal


def arguments(left: Output, right: Output, **changes: Any) -> Namespace:
    given = {"left": str(left.path), "right": str(right.path), "key": ["k"], "window": []}
    return Namespace(**{**given, "limit": 10, "json": False, **changes})


def test_the_command_says_what_it_found(
    left: Output, right: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    left.commit({"k": [1, 2, 2], "v": [1.5, 2.5, 3.5]})
    right.commit({"k": [1, 3], "v": [1.0, 2.5]})
    assert command.run(arguments(left, right)) == 1
    said = capsys.readouterr().out
    for part in (
        "left   " + str(left.path) + ": 1 file, 3 rows",
        "matched by k",
        "k=1: v 1.5 | 1.0",
        "only left\n  k=2 v=2.5\n  k=2 v=3.5",
        "keys with several rows, left\n  k=2: 2 rows",
        "the outputs differ",
    ):
        assert part in said, said
    assert command.run(arguments(left, left, key=None, window=None)) == 0
    assert "the outputs are equal" in capsys.readouterr().out


def test_the_command_prints_one_document(
    left: Output, right: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    left.commit({"k": [1, 2], "v": [1.5, math.inf], "t": [dt.datetime(2026, 1, 1)] * 2})
    right.commit({"k": [1, 2], "v": [1.5, 2.0], "t": [dt.datetime(2026, 1, 1)] * 2})
    assert command.run(arguments(left, right, json=True)) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["is_equal"], told["equal"], told["different"]) == (False, 1, 1)
    assert told["differing"] == [{"key": {"k": 2}, "columns": {"v": ["inf", 2.0]}}]
