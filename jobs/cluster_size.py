"""The cores of a Spark cluster, asked of its master before a job is given more slots than it has.

Each slot is a Spark task that holds ``spark.task.cpus`` cores for as long as the job runs, so a
parallelism beyond the cluster's cores never starts. Known sizes: of ``local-cluster`` from its
name, of the standalone cluster ``WEIR_SPARK_MASTER`` from the master's own page, whose address is
``WEIR_SPARK_MASTER_UI``. YARN and Kubernetes grow with what is asked of them, and ``local`` gets a
thread per slot: nothing is said of those, nor of a master that does not answer.

Source: Spark's standalone master, ``/json/``: ``workers`` with ``state`` and ``cores``.
"""

import logging
from http import HTTPStatus

import msgspec
import urllib3
from django.conf import settings

from jobs.models import Job
from weir.spark_master import MasterKind, SparkMaster

logger = logging.getLogger(__name__)

TIMEOUT = urllib3.Timeout(connect=1.0, read=2.0)
ANSWER_BYTES_MAX = 8 << 20  # A cluster of thousands of workers and applications.


class _Worker(msgspec.Struct):
    cores: int
    state: str


class _Master(msgspec.Struct):
    workers: list[_Worker]


def slots_max(job: Job) -> int | None:
    """The slots that the job's cluster can hold at most; None where that is not known.

    Cores that other jobs hold are counted: they may be free by the time the job needs them.
    """
    cores = _cores(job.spark_master)
    if cores is None:
        return None
    conf = settings.WEIR_SPARK_CONF | job.spark_conf
    cores = min(cores, _number(conf.get("spark.cores.max")) or cores)
    return cores // (_number(conf.get("spark.task.cpus")) or 1)


def _cores(master: str) -> int | None:
    known = SparkMaster.parse(master)
    if known.kind is MasterKind.LOCAL:
        return None
    page = settings.WEIR_SPARK_MASTER_UI
    is_standalone = known.kind is MasterKind.STANDALONE
    if not is_standalone or not page or master != settings.WEIR_SPARK_MASTER:
        return known.cores
    try:
        answer = urllib3.request(
            "GET",
            f"{page}/json/",
            timeout=TIMEOUT,
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            if answer.status != HTTPStatus.OK:
                raise ValueError(f"it answered {answer.status}")
            text = answer.read(ANSWER_BYTES_MAX, decode_content=True)
        finally:
            answer.close()
        workers = msgspec.json.decode(text, type=_Master).workers
    except (urllib3.exceptions.HTTPError, ValueError, msgspec.MsgspecError) as error:
        logger.warning("the size of the cluster %s is not known: %s: %s", master, page, error)
        return None
    return sum(worker.cores for worker in workers if worker.state == "ALIVE")


def _number(text: str | None) -> int | None:
    """A positive number of a Spark setting; None: it is not set, or Spark itself refuses it."""
    return int(text) if text is not None and text.isdecimal() and int(text) else None
