"""Arrays in files: as in memory, through growth, views, snapshots, restores and full disks."""

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import share
from tests.unit.operators.test_windows import Pipeline
from tests.unit.state.backends.test_increments import IncrementsMachine
from tests.unit.state.columns.test_integer_index import numbered, spans
from tests.unit.state.columns.test_table import ALL, FreezingColumns, all_values
from tests.unit.state.snapshots import ONE
from weir.config import StateBackendKind, StateConfig
from weir.state.backends import heap, mapped
from weir.state.backends.arrays import HeapArrays
from weir.state.backends.choice import open_tables
from weir.state.backends.heap import HeapTables
from weir.state.backends.mapped import FILE_BYTES_MIN, MappedArrays
from weir.state.columns import integer_index
from weir.state.columns.integer_index import IntegerIndex
from weir.state.columns.table import ColumnarTable
from weir.storage.local_directory import LocalDirectory

DEADLINE = settings(deadline=None)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def arrays(tmp_path: Path) -> MappedArrays:
    return MappedArrays(tmp_path)


@pytest.fixture
def always(arrays: MappedArrays, monkeypatch: pytest.MonkeyPatch) -> MappedArrays:
    """Files for arrays of any size."""
    monkeypatch.setattr(mapped, "FILE_BYTES_MIN", 1)
    return arrays


def table(arrays: MappedArrays, chunk_rows: int = 8, **columns: npt.DTypeLike) -> ColumnarTable:
    return ColumnarTable(
        "t",
        pa.int64(),
        columns or {"n": np.int64},
        ALL,
        len(ALL),
        chunk_rows=chunk_rows,
        arrays=arrays,
        notes_changes=True,
    )


def test_large_arrays_lie_in_files_that_have_no_name(arrays: MappedArrays, tmp_path: Path) -> None:
    before = open_files()
    small, large = arrays.zeros(1_000, np.int64), arrays.zeros(FILE_BYTES_MIN // 8, np.int64)
    assert (arrays.memory_bytes(small), arrays.memory_bytes(large)) == (8_000, 0)
    assert len(large) == FILE_BYTES_MIN // 8
    assert not large.any()
    assert open_files() > before
    assert os.listdir(tmp_path) == []
    del large
    assert open_files() == before


def test_a_file_grows_with_its_array_and_a_copy_is_made_once(arrays: MappedArrays) -> None:
    large = arrays.zeros(100, np.int32)
    large[:] = range(100)
    moves = 0
    while len(large) < 1_000_000:
        longer = arrays.grown(large, len(large) + 1)
        is_same = arrays.shares(large, longer)
        assert longer[: len(large)].tolist() == large.tolist()
        assert not longer[len(large) :].any()
        large[0] += 1
        assert (longer[0] == large[0]) == is_same
        assert is_same == (arrays.memory_bytes(large) == 0)
        moves += not is_same
        large = longer
    assert arrays.memory_bytes(large) == 0
    assert moves == 10, "in memory, twice as long each time; then to the file"


def test_the_blocks_of_a_file_are_reserved(arrays: MappedArrays, tmp_path: Path) -> None:
    """Else a full disk were a SIGBUS: a file with holes has as good as none."""
    file = mapped._File(tmp_path)
    for size in (1 << 20, 5 << 20):
        file.map(size)
        figures = os.fstat(file.descriptor)
        assert figures.st_size == size
        assert figures.st_blocks * 512 >= size


class MappedFreezingColumns(FreezingColumns):
    """The same of a table in files, whose views go on with its memory."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(mapped, "FILE_BYTES_MIN", 1)
        self.directory = LocalDirectory(None)
        self.arrays = MappedArrays(self.directory.path)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        assert self.table.nbytes == 0
        self.patch.undo()
        self.directory.close()


TestMappedFreezingColumns = MappedFreezingColumns.TestCase
TestMappedFreezingColumns.settings = settings(DEADLINE, max_examples=share(50, block=10))


class MappedIncrements(IncrementsMachine):
    """Checkpoints, restores, rescales and increments of tables in files."""

    def __init__(self) -> None:
        super().__init__()
        self.of_files = pytest.MonkeyPatch()
        self.of_files.setattr(mapped, "FILE_BYTES_MIN", 1)

    def teardown(self) -> None:
        super().teardown()
        self.of_files.undo()


TestMappedIncrements = MappedIncrements.TestCase
TestMappedIncrements.settings = settings(DEADLINE, max_examples=share(15, block=3))


@DEADLINE
@given(slices=st.lists(spans(), max_size=6), at_once=st.sampled_from([3, 1 << 18]))
def test_an_index_in_files_numbers_keys_as_one_in_memory(
    slices: list[npt.NDArray[np.int64]], at_once: int
) -> None:
    """In pieces of any size: that of places made anew is memory beside the files."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        patch.setattr(mapped, "FILE_BYTES_MIN", 1)
        patch.setattr(integer_index, "_SETTLED_AT_ONCE", at_once)
        patch.setattr(integer_index, "_MANY_KEYS", 2_000)  # Fuller from there on.
        index, known = IntegerIndex(MappedArrays(Path(directory))), dict[int, int]()
        for keys in slices:
            numbered(index, known, keys)
        for key in [*known, 1, 12_345_678_901, -(1 << 63), (1 << 63) - 1]:
            assert index.find(key) == known.get(key)
        assert index.nbytes == 0


def test_a_view_goes_on_with_a_table_that_grows_and_copies_nothing(always: MappedArrays) -> None:
    made = table(always)
    slots = made.slots_of(np.arange(5_000))
    made.column("n").scatter(slots, 1)
    frozen = made.freeze(ONE)
    more = made.slots_of(np.arange(100_000))
    made.column("n").scatter(more, 2)
    assert all_values(frozen)[1:].tolist() == [1] * 5_000
    frozen.release()
    assert made.column("n").gather(more).tolist() == [2] * 100_000


def test_saved_chunks_leave_their_files_with_the_last_view(always: MappedArrays) -> None:
    made = table(always)
    slots = made.slots_of(np.arange(5_000))
    before = open_files()
    first, second = made.freeze(ONE), made.freeze(ONE)
    made.column("n").scatter(slots, 1)
    assert open_files() > before, "old chunks were saved for the views"
    first.release()
    assert not all_values(second).any()
    second.release()
    assert open_files() == before


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_a_widened_column_and_a_new_one_lie_in_files_too(
    always: MappedArrays, dtype: npt.DTypeLike
) -> None:
    made = table(always, n=np.int32)
    slots = made.slots_of(np.arange(10_000))
    made.column("n").scatter(slots, np.arange(10_000))
    wide = made.evolved(pa.int64(), {"n": dtype, "new": np.int64})
    assert wide.column("n").gather(slots).tolist() == list(range(10_000))
    assert not wide.column("new").gather(slots).any()
    assert wide.nbytes == 0


def test_a_table_in_a_database_takes_no_memory_that_counts(tmp_path: Path) -> None:
    config = StateConfig(backend=StateBackendKind.ROCKSDB, directory=str(tmp_path))
    tables = open_tables(config, ALL)
    made = table(tables.arrays)  # type: ignore[arg-type]
    made.slots_of(np.arange(1_000))
    assert 8_000 < made.nbytes < 60_000
    made.slots_of(np.arange(500_000))
    assert made.nbytes == 0
    tables.close()
    assert made.slots_of(np.arange(500_000)).tolist() == list(range(1, 500_001))
    assert isinstance(open_tables(StateConfig(), ALL).arrays, HeapArrays)


def test_windows_lie_in_files_which_go_with_them(
    always: MappedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3_000

    def run() -> tuple[list[int], list[list[Any]]]:
        files, fired = [open_files()], []
        pipeline = Pipeline()
        times = [1] * count + [11] * count + [21] * count
        pipeline.run(times, k=[*range(count)] * 3, x=[*range(3 * count)])
        files.append(open_files())
        for watermark in (9, 19, 29):
            fired.append(pipeline.watermark(watermark))
            files.append(open_files())
        return files, fired

    gc.disable()
    try:
        files_in_memory, fired_in_memory = run()
        monkeypatch.setattr(heap, "HeapArrays", lambda: always)
        monkeypatch.setitem(HeapTables.__init__.__kwdefaults__, "is_incremental", True)
        files, fired = run()
    finally:
        gc.enable()
    assert fired == fired_in_memory
    assert len(set(files_in_memory)) == 1
    before, full, *left = files
    assert full == before + 3 * 2 * 4, "keys, their places, key groups and rows"
    assert [(n - before) * 3 for n in left] == [(full - before) * n for n in (2, 1, 0)]


FULL = """
import resource, sys
import numpy as np, pyarrow as pa
from pathlib import Path
from weir.errors import StorageError
from weir.ids import KeyGroupRange
from weir.state.backends.mapped import MappedArrays
from weir.state.columns.table import ColumnarTable

resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
arrays = MappedArrays(Path(sys.argv[1]))
table = ColumnarTable("t", pa.int64(), {"n": np.int64}, KeyGroupRange(0, 15), 16, arrays=arrays)
done = 0
try:
    for start in range(0, 10_000_000, 8_192):
        slots = table.slots_of(np.arange(start, start + 8_192) * 999_983)
        table.column("n").scatter(slots, 1)
        done = start + 8_192
except StorageError as error:
    print(done, error)
"""


def test_a_full_disk_is_an_error_with_advice_and_ends_no_process(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    done, _, text = run.stdout.partition(" ")
    assert 100_000 < int(done) < 600_000
    assert f"columns of state on local disk, in {tmp_path}, cannot grow to " in text
    assert "File too large; see to its space, or name another directory with state.back" in text


def test_a_process_may_have_as_many_files_open_as_its_limit_can_be_raised_to() -> None:
    program = (
        "import resource, tempfile; from pathlib import Path\n"
        "import numpy as np\n"
        "from weir.state.backends.mapped import MappedArrays\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))\n"
        "with tempfile.TemporaryDirectory() as directory:\n"
        "    arrays = MappedArrays(Path(directory))\n"
        "    kept = [arrays.zeros(40_000, np.int64) for _ in range(100)]\n"
        "    print(len(kept))\n"
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most > 300
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == "100\n"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("kind", "keys", "least", "most"),
    [
        ("int64", 2_500_000, 250_000_000, 45_000_000),
        ("string", 1_200_000, 150_000_000, 80_000_000),
    ],
)
def test_a_tables_state_of_many_limits_is_written_and_restored_within_them(
    tmp_path: Path, kind: str, keys: int, least: int, most: int
) -> None:
    """The whole state changes while its snapshot is written: what is anonymous at most.

    Measured: 18 MB of 345, and 104 MB in the restore, which holds one file of 64 MiB. Of text keys
    30 to 39 MB, and 110 to 127 MB, of 60 MB of state and of 376; once above 45, beside other work.
    """
    module = "tests.unit.state.backends.mapped_programs"
    run = subprocess.run(
        [sys.executable, "-m", module, str(tmp_path), kind, str(keys)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    state, grown, restored = map(int, run.stdout.split())
    assert state > least
    assert grown < most, run.stdout
    assert restored < 150_000_000, run.stdout
