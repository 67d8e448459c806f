"""The checkpoints that a job may begin with or let go, found by walking from parent to parent.

The production code knows the line behind a checkpoint by spans of numbers; here each manifest's
parent is asked for its own, over and over. Two such different ways are not wrong alike.
"""

from collections.abc import Container, Iterator

from tests.simulation.cluster import FaultyStore
from weir.common.clock import Clock
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.elements import CheckpointKind
from weir.storage.layout import JobLayout
from weir.storage.manifest import Manifest


class Lines:
    """The checkpoints of one job as a tree."""

    def __init__(self, job_id: JobId, store: FaultyStore, clock: Clock) -> None:
        self._job_id = job_id
        self._store = store
        self._clock = clock
        self._layout = JobLayout(job_id)
        self._started: tuple[AttemptNumber, CheckpointId | None] | None = None  # And its base.
        self._abandoned_ms: dict[CheckpointId, int] = {}

    def manifest(self, checkpoint_id: CheckpointId) -> Manifest:
        """The manifest as it was written, let go or not."""
        return self._store.written[self._job_id, checkpoint_id]

    def present(self) -> list[CheckpointId]:
        """The checkpoints that are there now, oldest first."""
        return sorted(self._store.manifests(self._job_id))

    def behind(self, checkpoint_id: CheckpointId | None) -> Iterator[CheckpointId]:
        """A checkpoint and those of its job that it builds on, newest first."""
        newest = checkpoint_id
        while checkpoint_id is not None:
            manifest = self._store.written.get((self._job_id, checkpoint_id))
            if manifest is None:
                return  # Another job's.
            if newest is not None and checkpoint_id <= newest:
                yield checkpoint_id  # Else it was triggered later, and its manifest written before.
            checkpoint_id = manifest.parent_id

    def covered(self, checkpoint_id: CheckpointId | None) -> dict[int, int]:
        """Up to which number the output of each attempt is on the line of a checkpoint."""
        covered: dict[int, int] = {}
        for number in self.behind(checkpoint_id):
            attempt = self.manifest(number).attempt
            covered[attempt] = max(covered.get(attempt, 0), number)
        return covered

    def may_begin_with(self, attempt: AttemptNumber) -> set[CheckpointId | None]:
        """Checkpoints to begin with unless told: the newest on the line of the attempt before.

        More than one only where another driver completed one while this one was choosing.
        """
        files = self._store.silent()
        bases = [self._layout.base_of(path) for path in files.list(self._layout.bases)]
        before = [base for base in bases if base[0] < attempt]
        last, base_id = max(before, default=(AttemptNumber(0), CheckpointId(0)))
        line = set(self.behind(base_id or None))
        claimed_at = self._store.created_at[self._layout.attempt(attempt)]
        surely: list[CheckpointId] = []
        perhaps: list[CheckpointId] = []
        for number in self.present():
            manifest = self.manifest(number)
            is_copy = manifest.kind is CheckpointKind.SAVEPOINT and number != base_id
            if (number in line or manifest.attempt >= last) and not is_copy:
                created_at = self._store.created_at[self._layout.manifest(number)]
                (surely if created_at < claimed_at else perhaps).append(number)
        newest = max(surely, default=None)
        return {newest, *(n for n in perhaps if newest is None or n > newest)}

    def started(
        self,
        attempt: AttemptNumber,
        restored: CheckpointId | None,
        reached_running: Container[AttemptNumber],
    ) -> None:
        """An attempt went on from a checkpoint: what is beside its line is abandoned from now.

        The attempt before it brought abandoned checkpoints back only if it reached RUNNING.
        """
        if self._started is not None and self._started[0] in reached_running:
            for number in self.behind(self._started[1]):
                self._abandoned_ms.pop(number, None)
        self._started = attempt, restored
        line = set(self.behind(restored))
        for number in self.present():
            if number not in line:
                self._abandoned_ms.setdefault(number, self._clock.now_ms())

    def must_stay(self, checkpoint_id: CheckpointId, retained_max: int, ttl_ms: int) -> bool:
        """Whether a checkpoint is retained, or was abandoned not long ago."""
        present = self.present()
        if self._started is None or checkpoint_id not in present:
            return False
        attempt, restored = self._started
        line = set(self.behind(restored))
        on_line = [
            number
            for number in present
            if (number in line or self.manifest(number).attempt == attempt)
            and self.manifest(number).kind is CheckpointKind.CHECKPOINT
        ]
        if checkpoint_id in on_line:
            return checkpoint_id in on_line[-retained_max:]
        since_ms = self._abandoned_ms.get(checkpoint_id, self._clock.now_ms())
        return self._clock.now_ms() < since_ms + ttl_ms
