"""Bad input and bad surroundings: an error that says what to do, and nothing lost.

``Failed`` is a job that failed for good in its middle and left checkpoints and committed files; the
tests go on from a copy of both, after something was done to them.
"""

import re
import shutil
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import LOCAL, Contexts
from tests.spark.functions import Failing, FailingRow, Opaque
from tests.spark.harness import (
    Count,
    collect,
    count,
    environment,
    numbered,
    rows_of,
    tagged_union,
    to_files,
    wrong_numbers,
)
from weir.common import Types, WatermarkStrategy
from weir.datastream import JobExecutionResult, StreamExecutionEnvironment
from weir.datastream.connectors import (
    NumberSequenceSource,
    ParquetSink,
    ParquetSource,
)
from weir.datastream.execution import ExecutionOptions, overriding
from weir.errors import ConfigError, JobFailedError, RestoreError, SlotError, UserError
from weir.spark import submit
from weir.storage.local import LocalStore
from weir.storage.manifest import find_jobs

pytestmark = [pytest.mark.usefixtures("local")]

EXACT = Count(lost=0, duplicated=0, out_of_order=0)
NEVER = {"restart-strategy.type": "none"}


def numbers(env: StreamExecutionEnvironment) -> Any:
    """The numbers from 1 to 100."""
    source = NumberSequenceSource(1, 100)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")


def cause_of(run: Callable[[], Any]) -> str:
    """Why a job failed for good."""
    with pytest.raises(JobFailedError) as caught:
        run()
    return str(caught.value)


# Pipelines --------------------------------------------------------------------------------------


def test_a_module_that_slots_do_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_on_the_driver")
    exec("def double(x):\n    return 2 * x", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    stream = numbers(environment(tmp_path)).map(module.double)
    cause = cause_of(lambda: collect(stream, "import"))
    assert "the pipeline cannot be loaded on 127.0.0.1" in cause
    assert "No module named 'only_on_the_driver'" in cause
    assert "--py-files" in cause


def test_a_function_that_cannot_travel(tmp_path: Path) -> None:
    lock = threading.Lock()
    stream = numbers(environment(tmp_path)).map(lambda x: lock and x)
    with pytest.raises(UserError, match=r"cannot be sent to the slots.*open\(\)"):
        collect(stream, "lock")


def test_a_key_function_that_throws_names_the_record(tmp_path: Path) -> None:
    stream = numbers(environment(tmp_path, settings=NEVER)).key_by(lambda x: 1 // (x - 50)).count()
    cause = cause_of(lambda: collect(stream, "key"))
    assert re.search(
        r"the function of key_by \(.*\) failed on the record 50: ZeroDivisionError", cause
    )


def test_a_key_of_no_known_type(tmp_path: Path) -> None:
    stream = numbers(environment(tmp_path)).key_by(lambda x: Opaque()).count()
    cause = cause_of(lambda: collect(stream, "key"))
    assert "Opaque" in cause
    assert "key_type" in cause


def test_records_that_do_not_fit_their_declared_type(tmp_path: Path) -> None:
    kind = Types.ROW_NAMED(["n"], [Types.LONG()])
    stream = numbers(environment(tmp_path)).map(lambda x: (x if x < 50 else "fifty",), kind)
    cause = cause_of(lambda: collect(stream.map_batches(lambda batch: batch), "schema"))
    assert "which does not fit its declared type" in cause
    assert "fifty" in cause


def test_records_that_do_not_fit_the_files_of_a_sink(tmp_path: Path) -> None:
    def rows(value: int) -> Any:
        return (value,)

    kind = Types.ROW_NAMED(["n"], [Types.LONG()])
    sink = ParquetSink(tmp_path / "output", schema=pa.schema({"other": pa.string()}))
    env = environment(tmp_path / "checkpoints")
    numbers(env).map(rows, kind).sink_to(sink)
    cause = cause_of(lambda: env.execute("sink schema"))
    assert "do not fit its schema" in cause
    assert "Declare output_type on the operator before the sink" in cause


# Surroundings -----------------------------------------------------------------------------------


def test_fewer_slots_than_needed(tmp_path: Path) -> None:
    env = environment(tmp_path, parallelism=5)
    with pytest.raises(SlotError, match=r"needs 5 slots, .* local\[4\] runs 4 tasks at a time"):
        collect(numbers(env).rebalance().map(str), "slots")


def test_a_checkpoint_storage_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    env = environment(tmp_path / "file" / "checkpoints")
    cause = cause_of(lambda: collect(numbers(env), "storage"))
    assert "a file stands where a directory is needed" in cause


@pytest.mark.parametrize("field", ["weir", "python", "pyarrow"])
def test_other_versions_on_the_executors(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver is the one that differs, which is the same to either.
    ours = replace(submit.installed_versions(), **{field: "0.0.1"})
    monkeypatch.setattr(submit, "installed_versions", lambda: ours)
    cause = cause_of(lambda: collect(numbers(environment(tmp_path)), "versions"))
    assert "0.0.1" in cause
    assert "install the same versions on every executor" in cause


def test_more_parallelism_than_key_groups(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.set_max_parallelism(4)
    with pytest.raises(ConfigError, match="max parallelism is 4"):
        env.set_parallelism(5)


# Restoring --------------------------------------------------------------------------------------

N = 1_500
RATE = 1_000.0
NAME = "failing"


@dataclass(frozen=True, slots=True)
class Failed:
    """The checkpoints and files of a failed job."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def manifests(self) -> dict[int, Path]:
        """By number, newest first."""
        paths = self.checkpoints.glob("*/chk-*/manifest")
        by_number = {int(path.parent.name.removeprefix("chk-")): path for path in paths}
        return dict(sorted(by_number.items(), reverse=True))

    def state_file(self, checkpoint: int) -> Path:
        """A file of a checkpoint that holds keyed state."""
        return next(self.manifests[checkpoint].parent.glob("*/numbering-*"))

    def run(
        self,
        *,
        fails_at: int | None = None,
        restore: str | None = "latest",
        parallelism: int = 2,
        with_numbers: bool = True,
        **options: Any,
    ) -> JobExecutionResult:
        """Run the pipeline."""
        env = environment(self.checkpoints, parallelism=parallelism, settings=NEVER)
        env.get_checkpoint_config().change(inline_max_bytes=1)
        stream = tagged_union(env, N, RATE).map(Failing(fails_at)).uid("failing")
        if with_numbers:
            stream = numbered(stream)
        else:
            stream = stream.map(lambda row: (*row, 0, 0)).uid("unnumbered")
        to_files(stream, self.output)
        with overriding(ExecutionOptions(restore=restore, **options)):
            return env.execute(NAME)

    def check(self) -> None:
        """Every record is in the files once."""
        rows = rows_of(self.output)
        assert count(rows, N) == EXACT
        assert not wrong_numbers(rows)


@pytest.fixture(scope="module")
def original(contexts: Contexts, tmp_path_factory: pytest.TempPathFactory) -> Failed:
    """The failed job; its files are not to be changed."""
    contexts.at(LOCAL)
    failed = Failed(tmp_path_factory.mktemp("failed"))
    assert "not yet repaired" in cause_of(lambda: failed.run(fails_at=1_200, restore=None))
    # As many as are retained; one more where it failed while the newest was being written.
    assert len(failed.manifests) in (3, 4)
    return failed


@pytest.fixture
def failed(original: Failed, tmp_path: Path) -> Failed:
    """A copy of it."""
    copy = Failed(tmp_path / "copy")
    shutil.copytree(original.root, copy.root)
    return copy


def test_a_repaired_pipeline_goes_on_from_the_newest_checkpoint(failed: Failed) -> None:
    newest = next(iter(failed.manifests))
    result = failed.run()
    assert result.history.restored_checkpoint == newest
    failed.check()


def test_a_checkpoint_that_is_not_there(failed: Failed) -> None:
    (job,) = find_jobs(LocalStore(failed.checkpoints), NAME)
    uri = f"{failed.checkpoints}/{job}/chk-999"
    cause = cause_of(lambda: failed.run(restore=uri))
    assert "there is no checkpoint 999" in cause
    assert "weir checkpoints" in cause
    assert count(rows_of(failed.output), N).duplicated == 0


def test_a_path_that_names_no_checkpoint(failed: Failed) -> None:
    with pytest.raises(RestoreError, match="there is no checkpoint or savepoint at"):
        failed.run(restore=str(failed.checkpoints))


def test_a_job_that_never_ran(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="holds no completed checkpoint of a job named"):
        Failed(tmp_path).run()


def test_an_older_checkpoint_that_is_asked_for(failed: Failed) -> None:
    (job,) = find_jobs(LocalStore(failed.checkpoints), NAME)
    oldest = list(failed.manifests)[-1]
    result = failed.run(restore=f"{failed.checkpoints}/{job}/chk-{oldest}")
    assert result.history.restored_checkpoint == oldest
    failed.check()


def damage(path: Path) -> None:
    """Change one byte in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["manifest", "state", "missing state"])
def test_a_damaged_checkpoint_is_passed_over_and_said(what: str, failed: Failed) -> None:
    newest, second, *_ = failed.manifests
    match what:
        case "manifest":
            damage(failed.manifests[newest])
        case "state":
            damage(failed.state_file(newest))
        case _:
            failed.state_file(newest).unlink()
    result = failed.run()
    assert result.history.restored_checkpoint == second
    (notice,) = result.history.notices
    assert f"checkpoint {newest} is passed over" in notice.text
    failed.check()


def test_checkpoints_none_of_which_is_whole(failed: Failed) -> None:
    for checkpoint in failed.manifests:
        damage(failed.state_file(checkpoint))
    before = rows_of(failed.output)
    cause = cause_of(failed.run)
    assert "none of them is whole" in cause
    assert "its checksum does not match" in cause
    assert rows_of(failed.output) == before


def test_an_operator_that_is_gone_is_refused_unless_allowed(failed: Failed) -> None:
    cause = cause_of(lambda: failed.run(with_numbers=False))
    assert "the checkpoint holds state of numbering" in cause
    assert "set allow_non_restored_state" in cause
    failed.run(with_numbers=False, allow_non_restored_state=True)
    assert {row[:2] for row in rows_of(failed.output)} == {
        (source, index) for source in ("left", "right") for index in range(N)
    }


def test_more_parallelism_than_the_state_has_key_groups(
    failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine has too few cores for so many slots, which is told before anything else.
    monkeypatch.setattr(submit, "check_cores", lambda master, slots: None)
    cause = cause_of(lambda: failed.run(parallelism=129))
    assert re.search("parallelism 129.*max parallelism 128; lower the parallelism", cause)


def test_an_input_file_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "input.parquet"
    table = pa.table({"n": range(3_000)})
    pq.write_table(table, path, row_group_size=1_000)

    def run(fails_at: int, restore: str | None) -> JobExecutionResult:
        env = environment(tmp_path / "checkpoints", settings=NEVER)
        source = ParquetSource(str(path), rows_per_second=2_000)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "file").uid("file")
        with overriding(ExecutionOptions(restore=restore)):
            return collect(stream.map(FailingRow(fails_at)).uid("map"), "file")

    assert "not yet repaired" in cause_of(lambda: run(2_600, None))
    pq.write_table(table.slice(1), path)
    cause = cause_of(lambda: run(-1, "latest"))
    assert f"{path} changed since the job first read it" in cause
    assert "Put the same file back" in cause
