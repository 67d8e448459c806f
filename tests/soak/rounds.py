"""One round: a seed's programs and faults, from the start of the job to the verdict."""

import shutil
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.programs.values import remove_files
from tests.soak.disk import Disk
from tests.soak.drawn import draw
from tests.soak.faults import Storm
from tests.soak.job import JobFinished, Seen, SoakJob
from tests.soak.on_spark import kill_all
from tests.soak.place import Place
from tests.soak.results import Outcome, Result
from tests.soak.schedule import Schedule
from tests.soak.verdict import Verdict
from tests.waiting import wait_until

END_S = 240.0  # For the rest of the input, at no rate.

Start = Callable[[Place, Path, str], SoakJob]  # Of a round, in a storage, with a session.


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one place."""

    start: Start
    disk: Disk
    storage: Callable[[Schedule], Path]
    scratch: Path
    findings: Path
    session: str

    def run(self, schedule: Schedule) -> Result:
        """Run one round; all that is wrong with it is in its result."""
        began = time.monotonic()
        place = Place(self.scratch / f"round-{schedule.seed}")
        one = _Round(self, schedule, place, f"{self.session}/{uuid.uuid4().hex}")
        try:
            one.run()
        finally:
            one.close()
            remove_files()
        result = one.result(time.monotonic() - began)
        if result.outcome is Outcome.FINDING:
            self._keep(result, schedule, place, one.storage)
        shutil.rmtree(place.root)
        return result

    def _keep(self, result: Result, schedule: Schedule, place: Place, storage: Path) -> None:
        """Keep the logs, the output and the storage of a finding."""
        kept = self.findings / f"{result.where}-{result.seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(place.root, kept)
        if storage.exists():
            shutil.copytree(storage, kept / "storage")
        command = f"python -m tests.soak --only {result.where} --seed {result.seed} --rounds 1"
        command += f" --faults {len(schedule.faults)} --overlaps {schedule.overlaps}"
        wrong = "\n".join(result.wrong)
        (kept / "finding.txt").write_text(f"{command}\n\n{wrong}\n", encoding="utf-8")


class _Round:
    def __init__(self, rounds: Rounds, schedule: Schedule, place: Place, session: str) -> None:
        self._rounds = rounds
        self._schedule = schedule
        self._place = place
        self._session = session
        self.storage = rounds.storage(schedule)
        self._job: SoakJob | None = None
        self._storm: Storm | None = None
        self._verdict = Verdict()
        self._seen = Seen()

    def run(self) -> None:
        """Run the job under its faults to its end, and judge it; an error is a finding."""
        try:
            drawn = draw(self._schedule.seed, self._schedule.programs)
            self._place.tell(self._schedule, drawn)
            self._job = job = self._rounds.start(self._place, self.storage, self._session)
            self._storm = Storm(
                job, self._place, self._rounds.disk, lambda: self._look("cancelled"), self._session
            )
            self._storm.run(self._schedule)
            self._seen = job.seen()
            _finish(job, self._place)
            self._verdict.output(self._place, drawn)
            job.sweep()
            self._look("finished")
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """End every process of the round."""
        try:
            if self._job is not None:
                self._job.close()
        except Exception as error:
            self._failed(error)
        finally:
            kill_all(self._session)

    def result(self, seconds: float) -> Result:
        """The round's line."""
        struck = [] if self._storm is None else self._storm.struck
        verdict = self._verdict
        return Result(
            seed=self._schedule.seed,
            where=self._schedule.where,
            outcome=_outcome(verdict, has_fired=any(one.fired for one in struck)),
            seconds=round(seconds, 1),
            struck=[asdict(one) for one in struck],
            checkpoints=self._seen.completed,
            attempts=self._seen.attempts,
            lost=verdict.lost,
            duplicated=verdict.duplicated,
            out_of_order=verdict.out_of_order,
            unneeded=verdict.unneeded,
            looks=verdict.looks,
            wrong=verdict.wrong,
        )

    def _look(self, moment: str) -> None:
        assert self._job is not None
        job = self._job.job_id
        assert job is not None, "the storage has no job"
        self._verdict.storage(self.storage, job, moment)

    def _failed(self, error: Exception) -> None:
        self._verdict.wrong.append(f"{type(error).__name__}: {error}")
        with (self._place.root / "tracebacks.txt").open("a") as file:
            file.write("".join(traceback.format_exception(error)))


def _finish(job: SoakJob, place: Place) -> None:
    """Let the sources hurry, and wait for the job's end."""
    place.hurry.touch()

    def is_over() -> bool:
        with suppress(JobFinished):
            job.mend()
        return job.is_finished

    wait_until(is_over, "the job has finished", END_S, 0.1)


def _outcome(verdict: Verdict, *, has_fired: bool) -> Outcome:
    if verdict.wrong:
        return Outcome.FINDING
    return Outcome.GOOD if has_fired else Outcome.CALM
