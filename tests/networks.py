"""Networks of jobs for tests, plain and encrypted, with credentials as production makes them."""

from weir.channels.authority import EncryptedNetwork, Network, PlainNetwork
from weir.channels.security import derive_worker_credentials, open_credentials
from weir.channels.session import Security
from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import Credentials

JOB_ID = JobId("job-1")
KINDS = {"plain": PlainNetwork, "encrypted": EncryptedNetwork}


def make_network(kind: str, job_id: JobId = JOB_ID) -> Network:
    """A network of this kind, with keys of its own."""
    return KINDS[kind](job_id)


def worker_credentials(network: Network, attempt: int, slot_index: int) -> Credentials:
    """The credentials of a worker process, sent or derived as its network has it."""
    number = AttemptNumber(attempt)
    sent = network.worker(number, slot_index)
    return sent or derive_worker_credentials(network.slot(slot_index), number, slot_index)


def worker_security(network: Network, attempt: int, slot_index: int) -> Security:
    """The same, ready for use."""
    return open_credentials(worker_credentials(network, attempt, slot_index))
