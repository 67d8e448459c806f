"""The fence between the drivers of one job, by the attempts that the checkpoint storage records.

Each attempt is claimed by creating its file, which only one driver can. A manifest and the claim of
an attempt fence each other: a driver writes the manifest, then looks whether a newer attempt of
another driver is recorded; a new driver records its attempt, then looks for manifests. In either
order the old driver sees the new attempt and commits nothing, or the new driver sees the manifest
and restores from it.

A claim is never deleted while its driver runs. Where it is gone, another directory is in the place
of the storage, such as the one below a share that was unmounted: a checkpoint that completed there
would be missing once the share is back.
"""

from contextlib import suppress
from enum import StrEnum

from weir.errors import StorageError
from weir.ids import AttemptNumber, JobId
from weir.storage.attempt_claims import load_managed, newest_attempt
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore


class FencedError(StorageError):
    """Another driver has taken the job over."""

    retryable = False


class Act(StrEnum):
    """The acts of a driver that its successor could suffer from."""

    RESTORE = "restore a checkpoint"
    WRITE_MANIFEST = "write a manifest"
    COUNT_MANIFEST = "count its manifest"
    COUNT_LATE_MANIFEST = "count a manifest that was written although writing failed"
    WRITE_TOMBSTONE = "give a checkpoint up"
    DISCARD = "discard a checkpoint"
    DELETE_CLAIMED = "delete the savepoint that it claimed"
    SWEEP = "delete files that nothing needs"


class Fence:
    """One driver's side of the fence: its newest attempt against those that are recorded.

    ``claim``, ``check`` and ``newest_recorded`` do I/O, and raise ``StorageError`` where it fails.
    """

    def __init__(self, store: CheckpointStore, job_id: JobId, driver: bytes = b"") -> None:
        self._store = store
        self._layout = JobLayout(job_id)
        self._driver = driver  # Its process, as the claim of an attempt describes it.
        self.attempt = AttemptNumber(0)  # The newest attempt of this driver.
        self.has_claimed = False  # Some attempt is this driver's; it was then the newest.
        self._claimed = AttemptNumber(0)  # The newest that this driver claimed.
        self.is_fenced_off = False
        self._successor = ""  # The URL of another control plane, whose driver has the job.

    @property
    def cause(self) -> str:
        """The cause of this driver's end once it is fenced off, for a user."""
        job, url = self._layout.job, self._successor
        other = f"a driver of the control plane at {url}" if url else "another driver"
        text = (
            f"{other} runs {job} now: a newer attempt is recorded in the checkpoint storage; this "
            "one stops without committing anything"
        )
        if not url:
            return text
        return f"{text}. Two control planes must not run one job: stop the one that is the copy"

    def begin_attempt(self, attempt: AttemptNumber) -> None:
        """An attempt of this driver begins: older ones of other drivers are fenced by its claim."""
        self.attempt = attempt

    def mark_fenced(self) -> None:
        """Another driver has taken the job over: its storage belongs to that one from now on."""
        self.is_fenced_off = True

    def claim(self, attempt: AttemptNumber) -> bool:
        """Record the attempt; False: another driver has."""
        is_mine = self._store.create_if_absent(self._layout.attempt(attempt), self._driver)
        if is_mine:
            self._claimed = attempt
        else:
            self._look_at_successor(attempt)
        return is_mine

    def newest_recorded(self) -> AttemptNumber:
        """The newest attempt of any driver; 0: none."""
        return newest_attempt(self._store, self._layout.job)

    def check(self, act: Act) -> None:
        """Check before an act that no other driver has begun an attempt after those of this one.

        Raises:
            FencedError: Another driver has.
            StorageError: This driver's claim is gone: it is not the storage that it claimed.
        """
        newest = self.newest_recorded()
        if newest > self.attempt:
            self._look_at_successor(newest)
            raise FencedError(
                f"attempt {newest} of the job belongs to another driver; this one may not {act}"
            )
        if newest < self._claimed:
            raise StorageError(
                f"the storage has lost the claim of attempt {self._claimed}, so this driver may "
                f"not {act}; was it unmounted, or emptied? Put it back, and the job goes on"
            )

    def _look_at_successor(self, attempt: AttemptNumber) -> None:
        with suppress(StorageError):  # That it exists is known; this is for the text alone.
            successor = load_managed(self._store.read(self._layout.attempt(attempt)))
            own = load_managed(self._driver)
            if successor and own and successor.control_plane != own.control_plane:
                self._successor = successor.control_plane
