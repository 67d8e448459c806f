"""Notes of what changed: each key once, with the value that it got last."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from weir.state.backends.changed_keys import (
    LOOKED_UP,
    REMOVED,
    VALUE_BYTES_MAX,
    ChangedKeys,
    merged,
)

values = st.one_of(
    st.just(REMOVED),
    st.binary(min_size=2, max_size=9),
    st.integers(VALUE_BYTES_MAX - 1, VALUE_BYTES_MAX + 2).map(bytes),
)
pieces = st.tuples(
    st.integers(1, 2), st.dictionaries(st.binary(min_size=1, max_size=2), values, min_size=1)
)


@given(st.lists(st.lists(pieces, max_size=6), min_size=1, max_size=4))
def test_each_key_comes_once_with_its_last_value(
    intervals: list[list[tuple[int, dict[bytes, bytes]]]],
) -> None:
    expected: dict[int, dict[bytes, bytes]] = {1: {}, 2: {}}
    with tempfile.TemporaryDirectory() as directory:
        noted = []
        for interval in intervals:
            noted.append(ChangedKeys(Path(directory)))
            for table, changes in interval:
                keys = sorted(changes)
                noted[-1].append(table, keys, [changes[key] for key in keys])
                expected[table].update(changes)
        for table, changes in expected.items():
            assert list(merged(noted, table)) == [
                (key, value if len(value) <= VALUE_BYTES_MAX else LOOKED_UP)
                for key, value in sorted(changes.items())
            ]


def test_pieces_that_follow_one_another_are_one_run_of_many_blocks(tmp_path: Path) -> None:
    noted = ChangedKeys(tmp_path)
    keys = [n.to_bytes(4, "big") for n in range(10_000)]
    for first in range(0, len(keys), 1_000):
        piece = keys[first : first + 1_000]
        noted.append(7, piece, [b"value of " + key for key in piece])
    assert len(noted.runs(7)) == 1
    assert list(merged([noted], 7)) == [(key, b"value of " + key) for key in keys]
    assert list(merged([noted], 8)) == []
