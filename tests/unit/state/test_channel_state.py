"""Records under way as files: they come back as they were, and damage is told."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.common.batch import Batch
from weir.common.typeinfo import Types
from weir.common.watermarks import Watermarks
from weir.errors import CorruptStateError, SchemaError
from weir.protocol.elements import Records
from weir.state.channel_state import decode_records, encode_records

FRAME = 1 << 20


def records(batch: Batch) -> Records:
    return Records(batch, len(batch), batch.size)


def rows(*values: object) -> Records:
    return records(Batch.of_rows(list(values), Types.LONG() if values else None))


def columns(count: int, **settings: object) -> Records:
    table = pa.RecordBatch.from_pydict({"key": [f"k{i}" for i in range(count)]})
    return records(Batch.of_columns(table, None, np.arange(count)))


def test_rows_and_columns_come_back_in_order_with_their_event_times() -> None:
    written = [rows(1, 2), columns(3), rows(4)]
    read = decode_records(encode_records(written, FRAME), "in/a/0")
    assert [one.payload.rows for one in read] == [one.payload.rows for one in written]
    assert [one.payload.is_columnar for one in read] == [False, True, False]
    assert [one.size for one in read] == [one.size for one in written]
    times = read[1].payload.timestamps
    assert times is not None
    assert times.tolist() == [0, 1, 2]


def test_a_batch_of_several_frames_comes_back_as_one() -> None:
    written = columns(5_000)
    data = encode_records([written], 4_096)
    assert len(data) > 3 * 4_096
    (read,) = decode_records(data, "in/a/0")
    assert read.payload.columns.equals(written.payload.columns)


def test_watermarks_between_the_records_are_left_behind() -> None:
    """Event time must not be ahead of a restored record."""
    batch = Batch.of_rows([1, 2], Types.LONG(), watermarks=Watermarks(np.array([1]), np.array([9])))
    assert batch.watermarks is not None
    (read,) = decode_records(encode_records([records(batch)], FRAME), "in/a/0")
    assert (read.payload.rows, read.payload.watermarks) == ([1, 2], None)


def test_nothing_is_a_file_too() -> None:
    assert decode_records(encode_records([], FRAME), "in/a/0") == []


@given(st.data())
def test_damage_and_truncation_are_told_by_the_name_of_the_state(data: st.DataObject) -> None:
    whole = encode_records([rows(1, 2), columns(3)], FRAME)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptStateError, match="in/a/0 cannot be restored"):
        decode_records(whole[:cut], "in/a/0")
    flipped = bytearray(whole)
    flipped[cut] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptStateError, match="in/a/0 cannot be restored"):
        decode_records(bytes(flipped), "in/a/0")


def test_bytes_behind_the_end_are_told() -> None:
    whole = encode_records([rows(1)], FRAME)
    with pytest.raises(CorruptStateError):
        decode_records(whole + whole[5:], "in/a/0")
    with pytest.raises(CorruptStateError, match="cut short"):
        decode_records(whole + b"W", "in/a/0")


def test_another_version_is_told_by_number() -> None:
    whole = bytearray(encode_records([], FRAME))
    whole[4] = 2
    with pytest.raises(CorruptStateError, match="version 2, this Weir reads 1"):
        decode_records(bytes(whole), "in/a/0")


class Thing:
    """No data: it could only be pickled."""


def test_pickles_are_neither_written_nor_read_unless_the_job_allows_them() -> None:
    strange = records(Batch.of_rows([Thing()]))
    with pytest.raises(SchemaError):
        encode_records([strange], FRAME)
    data = encode_records([strange], FRAME, pickles=True)
    with pytest.raises(SchemaError, match="came as pickles"):
        decode_records(data, "in/a/0")
    (read,) = decode_records(data, "in/a/0", pickles=True)
    assert isinstance(read.payload.rows[0], Thing)
