"""Fifty drivers of one job are killed, one after the other; after each, every file is asked about.

The drivers are ``weir run`` on the in-process cluster, forked from one warm process, so that a kill
ends driver, workers and sinks at once. The looks at the storage are those of ``weir checkpoints``
and ``weir clean``, beside what the manifests themselves name.
"""

import json
import random
from collections import Counter
from pathlib import Path

from tests.process.cli.test_cli_clean import Runs
from weir.cli.checkpoints import Condition, list_jobs
from weir.cli.clean import leftovers
from weir.cli.uri import find_place
from weir.ids import AttemptNumber, JobId
from weir.output.needs import File, OutputFile, Reason, SavepointFile, StoredFile
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest

KILLS = 50
POINTS = {  # And the most hits that a driver is allowed before its death.
    "restore.before": 4,
    "barrier.arrived": 12,
    "snapshot.before": 12,
    "snapshot.frozen": 12,
    "snapshot.write": 20,
    "manifest.before": 3,
    "manifest.written": 3,
    "sink.before_close": 5,
    "sink.before_commit": 4,
    "sink.after_rename": 4,
}


def kill(runs: Runs, point: str, hit: int) -> None:
    """Run a driver from the newest checkpoint until it is killed."""
    runs.killed_at(point, hit, *(("--restore", "latest") if runs.storage.exists() else ()))


def look(runs: Runs) -> tuple[Counter[Reason], list[File]]:
    """The needs of a dead job's files, counted, and the files that nothing needs."""
    left = leftovers(LocalStore(runs.storage), JobId(runs.job))
    assert not left.may_run, left.standing
    told = {file for file in (*left.plan.needs, *left.plan.delete) if isinstance(file, StoredFile)}
    assert {file.path for file in told} == runs.stored()
    sinks = {f.path for f in (*left.plan.needs, *left.plan.delete) if isinstance(f, OutputFile)}
    assert sinks == runs.uncommitted()
    assert not any(isinstance(file, SavepointFile) for file in left.plan.needs)
    return Counter(need.reason for need in left.plan.needs.values()), list(left.plan.delete)


def covered(runs: Runs) -> set[str]:
    """The uncommitted files of the sink that a restore from one of the checkpoints commits."""
    manifests = [one for one in runs.manifests().values() if isinstance(one, Manifest)]
    paths = [h.path for one in manifests for h in one.handles if h.name == "commits" and h.path]
    stored = [json.loads((runs.storage / runs.job / path).read_bytes()) for path in paths]
    waiting = {pending for items in stored for item in items for pending, _ in item["commits"]}
    return waiting & runs.uncommitted()


def written_by(file: File) -> AttemptNumber:
    """The attempt that wrote a file of a checkpoint or a sink; of others 0."""
    if isinstance(file, OutputFile):
        return file.attempt
    number = file.path.split("/")[1:2]
    return AttemptNumber(int(number[0]) if number and number[0].isdecimal() else 0)


def newest_attempt(runs: Runs) -> AttemptNumber:
    attempts = LocalStore(runs.storage).list(JobLayout(JobId(runs.job)).attempts)
    return max(map(JobLayout(JobId(runs.job)).attempt_of, attempts))


def test_after_fifty_kills_every_file_is_named_and_needed(tmp_path: Path) -> None:
    runs, rng = Runs(tmp_path), random.Random("fifty kills")
    kill(runs, "manifest.written", 3)
    ran = newest_attempt(runs)  # The newest attempt that surely came to run, and so swept.
    opening = {"restore.before", "sink.after_rename", "sink.before_commit"}  # It may not run yet.
    unneeded: Counter[str] = Counter()
    waited = 0
    for _ in range(KILLS - 1):
        point = rng.choice(sorted(POINTS))
        kill(runs, point, rng.randint(1, POINTS[point]))
        if point not in opening:
            ran = newest_attempt(runs)
        needs, left = look(runs)
        assert Reason.DOUBT not in needs
        assert needs[Reason.CHECKPOINT], "there is nothing to restore"
        strays = [file for file in left if 0 < written_by(file) < ran]
        assert not strays, f"attempt {ran} came to run, and had swept"
        named_by_none = runs.without_a_use()
        assert named_by_none == {file.path for file in left if isinstance(file, StoredFile)}
        waiting = covered(runs)
        assert not waiting & {file.path for file in left if isinstance(file, OutputFile)}
        waited += len(waiting)
        unneeded.update(type(file).__name__ for file in left)
        (job,) = list_jobs(find_place(str(runs.storage)), read_files=True)
        assert {one.condition for one in job.checkpoints} <= {Condition.WHOLE, Condition.GIVEN_UP}
        assert job.leftovers == len(left)
    assert newest_attempt(runs) == KILLS
    assert unneeded["StoredFile"] > KILLS / 5
    assert unneeded["OutputFile"] > KILLS / 5
    assert waited > KILLS / 5, "too few sinks died between checkpoint and commit"

    assert runs.clean("--yes").returncode == 0
    needs, left = look(runs)
    assert (left, runs.without_a_use()) == ([], set())
    assert set(needs) <= {Reason.CHECKPOINT, Reason.NUMBER, Reason.RECORD}
    runs.finished()
    runs.check_output()
    assert runs.uncommitted() == set()
