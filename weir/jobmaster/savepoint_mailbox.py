"""The savepoint mailbox: requests of other processes to a running job, in its checkpoint storage.

Any process that can write to the storage may request a savepoint; it could also read and delete the
job's checkpoints. No port is opened and no address has to be known. A job under a control plane has
no mailbox: its operations are rows there.

::

    client   requests/<id>.json          the request, with its expiry
    driver   requests/<id>.taken         a driver has taken it
    driver   requests/<id>.answer.json   its outcome; the request is removed after it
    client                               removes the files that are left
"""

import json
import re
from dataclasses import dataclass
from urllib.parse import unquote

from weir.errors import ProtocolError
from weir.ids import JobId
from weir.protocol.elements import CheckpointKind
from weir.protocol.wire import from_wire, to_wire
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, PathNotFoundError

# A client looks every second or so; one that has not looked for this long has ended.
ANSWER_KEPT_MS = 600_000
NEW_MAX = 16  # Requests that one look takes; the others wait for the next.
# A request that came since a look at most this long ago is new, even if the two clocks differ.
FRESH_MS = 10_000

_FILE = re.compile(r"([^/.]+)(\.json|\.taken|\.answer\.json)")


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """A request for a savepoint, or to stop the job with one.

    Units: ``expires_ms`` is by the wall clock of the client, which gives up then. It tells a
    leftover among the requests of a driver's first look; a request that comes between two looks is
    new without it, since the clocks may differ.
    """

    request_id: str
    kind: CheckpointKind  # SAVEPOINT, STOP_SUSPEND or STOP_DRAIN.
    target: str  # The savepoint's own directory.
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request."""

    request_id: str
    ok: bool
    uri: str = ""  # The savepoint. Also set where it was taken and the stop failed.
    error: str = ""


class Mailbox:
    """The requests to one job, for its driver and for clients.

    Every method raises ``StorageError`` when the storage fails; calling it again is harmless. Calls
    to one object must not overlap.
    """

    def __init__(self, store: CheckpointStore, job_id: JobId) -> None:
        self._store = store
        self._layout = JobLayout(job_id)
        self._seen: set[str] = set()  # Requests that were taken, while their files exist.
        self._answers_since_ms: dict[str, int] = {}  # When this object first listed each answer.
        self._looked_ms: int | None = None  # When all existing requests were last taken.

    # The driver's side.

    def take(self, now_ms: int) -> list[SavepointRequest]:
        """The requests that are new to this object, each once.

        Delivery is *at least once*: a request stays until it is answered or withdrawn, so the next
        driver takes the requests that its predecessor took and did not answer. The predecessor may
        have completed that very savepoint, or the stop; its directory is then in use, by a manifest
        of this job.

        Requests that expired or cannot be read are answered with an error and removed. Answers that
        no client fetches are removed after a while.
        """
        looked_ms = self._looked_ms
        requests, marks, answers = self._listed()
        is_looking = looked_ms is not None and now_ms - looked_ms <= FRESH_MS
        self._seen &= requests
        self._drop_old_answers(answers, now_ms)
        for request_id in marks - requests:  # A crash between the two deletions.
            self._store.delete(self._layout.request_taken(request_id))
        taken = []
        new = sorted(requests - self._seen)
        for request_id in new[:NEW_MAX]:
            try:
                data = self._store.read(self._layout.request(request_id))
            except PathNotFoundError:
                continue  # Withdrawn since it was listed.
            request, problem = _read(request_id, data, None if is_looking else now_ms)
            if request is None:
                self.answer(request_id, Answer(request_id, ok=False, error=problem))
                continue
            self._store.put(self._layout.request_taken(request_id), b"")
            taken.append(request)
        # Not before: had the storage failed in between, the first ones would not be returned.
        self._seen.update(request.request_id for request in taken)
        if len(new) <= NEW_MAX:  # Else the next look takes the others.
            self._looked_ms = now_ms
        return taken

    def answer(self, request_id: str, answer: Answer) -> None:
        """Answer a request, and remove it; one that was withdrawn gets no answer."""
        if self._store.exists(self._layout.request(request_id)):
            data = json.dumps(to_wire(answer)).encode()
            self._store.put(self._layout.answer(request_id), data)
        self._remove_request(request_id)

    # The client's side.

    def post(self, request: SavepointRequest) -> None:
        """Post a request; its id must be new."""
        data = json.dumps(to_wire(request)).encode()
        self._store.put(self._layout.request(request.request_id), data)

    def was_taken(self, request_id: str) -> bool:
        """Whether a driver has seen the request that is not answered yet."""
        return self._store.exists(self._layout.request_taken(request_id))

    def await_answer(self, request_id: str) -> Answer | None:
        """The answer, or None where there is none yet; looks once.

        Raises:
            ProtocolError: The answer cannot be read.
        """
        path = self._layout.answer(request_id)
        try:
            data = self._store.read(path)
        except PathNotFoundError:
            return None
        try:
            return from_wire(Answer, json.loads(data))
        except ValueError as error:
            raise ProtocolError(f"{path} is no answer: {error}") from error

    def withdraw(self, request_id: str) -> None:
        """Remove a request, answered or no longer needed, and its answer.

        A driver that has taken the request executes it all the same.
        """
        self._remove_request(request_id)
        self._store.delete(self._layout.answer(request_id))

    def _remove_request(self, request_id: str) -> None:
        # The request first: without it no driver takes it again.
        self._store.delete(self._layout.request(request_id))
        self._store.delete(self._layout.request_taken(request_id))

    def _listed(self) -> tuple[set[str], set[str], set[str]]:
        """Three sets of ids: with a request, with a mark that it was taken, with an answer."""
        ids: dict[str, set[str]] = {".json": set(), ".taken": set(), ".answer.json": set()}
        for path in self._store.list(self._layout.requests):
            name = _FILE.fullmatch(path.rpartition("/")[2])
            if name is not None:
                ids[name[2]].add(unquote(name[1]))
        return ids[".json"], ids[".taken"], ids[".answer.json"]

    def _drop_old_answers(self, answers: set[str], now_ms: int) -> None:
        since = self._answers_since_ms
        self._answers_since_ms = {a: since.get(a, now_ms) for a in answers}
        for request_id, since_ms in self._answers_since_ms.items():
            if now_ms - since_ms >= ANSWER_KEPT_MS:
                self._store.delete(self._layout.answer(request_id))


def _read(request_id: str, data: bytes, now_ms: int | None) -> tuple[SavepointRequest | None, str]:
    """The request; or None and the problem. ``now_ms`` None: expiry is not checked."""
    try:
        request = from_wire(SavepointRequest, json.loads(data))
        if request.request_id != request_id:
            raise ValueError(f"its request_id is {request.request_id!r}")
    except (ValueError, RecursionError, ProtocolError) as error:
        return None, (
            f"the driver cannot read the request ({error}); ask with the version of Weir that the "
            "job runs with"
        )
    if request.kind is CheckpointKind.CHECKPOINT:
        return None, "a request is for a savepoint, with or without a stop"
    if now_ms is not None and now_ms >= request.expires_ms:
        return None, (
            "the request had expired when the driver saw it; give it more time, or compare the "
            "clocks of the two machines"
        )
    return request, ""
