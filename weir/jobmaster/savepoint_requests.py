"""Requests for savepoints in library mode, from the mailbox or a caller to their answer.

A request is checked before it holds the job up, becomes a request to the coordinator, and is
answered once: a savepoint when it completed, a stop when the job ended after its savepoint did.
Under a control plane requests are rows there, and reach the driver as commands.
"""

from collections.abc import Callable

from weir.common.clock import Clock
from weir.ids import JobId
from weir.jobmaster.checkpoint_runner import CheckpointRunner
from weir.jobmaster.counted_io import CountedIo, Io
from weir.jobmaster.fence import Fence
from weir.jobmaster.mailbox_poll import MailboxPoll
from weir.jobmaster.savepoint_mailbox import Answer, Mailbox, SavepointRequest
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus
from weir.protocol.pending import STOP_KINDS, CompletedCheckpoint
from weir.storage.catalog import OpenStore
from weir.storage.layout import SAVEPOINT_MANIFEST, savepoint_location
from weir.storage.store import CheckpointStore, WriteRefusedError

_LOST = (
    "; where the drain has ended the sources, which cannot be undone, the job goes back to its "
    "newest checkpoint or, without one, to where it began"
)


class SavepointRequests:
    """The requests of one job."""

    def __init__(
        self,
        checkpoints: CheckpointRunner,
        store: CheckpointStore,
        job_id: JobId,
        *,
        storage: str | None,
        has_mailbox: bool,
        fence: Fence,
        io: Io,
        clock: Clock,
        open_store: OpenStore,
        status: Callable[[], JobStatus],
        note: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            storage: The URI of the job's checkpoints, next to which savepoints lie by default.
            status: The job's status: savepoints are taken while it runs.
            note: Receives a text for the user when the storage fails.
        """
        self._checkpoints = checkpoints
        self._job_id = job_id
        self._storage = storage
        self._fence = fence
        self._io = CountedIo(io)
        self._open_store = open_store
        self._status = status
        self._ended: tuple[bool, str] | None = None  # Whether the job finished, and how it ended.
        # Stops whose savepoint is complete and whose job has not ended: name, URI, callback.
        self._stopping: list[tuple[str, str, Callable[[Answer], None]]] = []
        self._poll: MailboxPoll | None = None
        if has_mailbox:
            mailbox = Mailbox(store, job_id)
            self._poll = MailboxPoll(mailbox, io=io, clock=clock, ask=self._asked, note=note)

    @property
    def is_busy(self) -> bool:
        """Whether a directory is being checked, or the mailbox read or written."""
        return self._io.is_busy or (self._poll is not None and self._poll.is_busy)

    def next_due_ms(self) -> int | None:
        """The time at which ``tick`` is due next."""
        return None if self._poll is None else self._poll.next_due_ms()

    def tick(self) -> None:
        """Look into the mailbox, if a look is due."""
        if self._poll is not None:
            self._poll.tick()

    def start(self) -> None:
        """The job runs: requests are taken from the mailbox from now on."""
        if self._poll is not None:
            self._poll.start()

    def pause(self) -> None:
        """The job does not run for a while: requests wait until it does, or expire."""
        if self._poll is not None:
            self._poll.pause()

    def drop_mailbox(self) -> None:
        """Another driver has the job, and the mailbox with it."""
        if self._poll is not None:
            self._poll.drop()

    def close_mailbox(self, how: str) -> None:
        """The job is over: answer every further request with ``how`` it ended."""
        if self._poll is not None:
            self._poll.end(how)

    def request(
        self,
        request_id: str,
        kind: CheckpointKind,
        target: str | None,
        *,
        done: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        """Take a savepoint, or stop the job with one; see ``JobMaster.savepoint``."""

        def answered(answer: Answer) -> None:
            if answer.ok:
                done(answer.uri)
            else:
                failed(answer.error)

        if target is None and self._storage is not None:
            target = savepoint_location(self._storage, self._job_id, request_id)
        if target is None:
            failed("the job keeps its checkpoints in memory, so a savepoint needs a directory")
            return
        self._save(SavepointRequest(request_id, kind, target, expires_ms=0), answered)

    def job_ended(self, how: str, *, is_finished: bool) -> None:
        """The job is over: answer the stops, with success where it finished."""
        self._ended = is_finished, how
        self._answer_stops(is_finished, how)

    def _asked(self, request: SavepointRequest) -> None:
        """A request came through the mailbox."""
        assert self._poll is not None
        self._save(request, self._poll.answer)

    def _save(self, request: SavepointRequest, answered: Callable[[Answer], None]) -> None:
        name, kind, target = request.request_id, request.kind, request.target
        drains = kind is CheckpointKind.STOP_DRAIN

        def refuse(why: str) -> None:
            answered(Answer(name, ok=False, error=why))

        def look() -> None:
            """Check that the savepoint directory is free and writable before triggering.

            Otherwise a barrier would hold the job up, or its sources would end, for nothing.
            """
            store = self._open_store(target)
            if store.exists(SAVEPOINT_MANIFEST):
                raise WriteRefusedError(f"{target} holds a savepoint already; choose another name")
            probe = f"probe-{self._fence.attempt}"
            store.put(probe, b"")
            store.delete(probe)

        def looked(outcome: Exception | None) -> None:
            if isinstance(outcome, Exception):
                refuse(str(outcome))
            elif (status := self._status()) is not JobStatus.RUNNING:
                refuse(f"the job is {status}; request the savepoint again when it runs")
            else:
                self._checkpoints.request(name, kind, target, settled)

        def settled(completed: CompletedCheckpoint | None, why: str) -> None:
            if completed is None:
                refuse(f"the savepoint was not taken: {why}{_LOST if drains else ''}")
            elif kind in STOP_KINDS:
                self._stopping.append((name, target, answered))
                if self._ended is not None:  # While the manifest was being written.
                    self._answer_stops(*self._ended)
            else:
                answered(Answer(name, ok=True, uri=target))

        self._io.run(look, looked)

    def _answer_stops(self, is_finished: bool, how: str) -> None:
        stopping, self._stopping = self._stopping, []
        for name, uri, answered in stopping:
            if is_finished:
                answered(Answer(name, ok=True, uri=uri))
            else:
                error = f"{how}; the savepoint was taken and is kept: {uri}"
                answered(Answer(name, ok=False, uri=uri, error=error))
