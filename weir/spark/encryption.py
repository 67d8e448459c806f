"""Spark's own connections: the settings that authenticate and encrypt them, and remarks on them.

A slot gets its credentials with its Spark task, so a job's network is as secret as the way of
Spark's tasks. By default Spark lets any process that reaches the driver's port register as an
executor, and get tasks. On one machine authentication is enough (``weir.channels.auth`` tells why);
between machines its traffic is encrypted as well, with a cipher that notices changes.

Spark makes a secret of its own for each application on YARN, on Kubernetes and on a ``local``
master. A standalone cluster has one secret, set on each of its nodes, which applications must know;
it belongs into a file that only its owner can read, and never on a command line. ``local-cluster``,
by which Spark tests itself, gets no settings.
"""

from collections.abc import Iterator

from pyspark import SparkContext

from weir.channels.authority import Protection
from weir.spark_master import MasterKind, SparkMaster
from weir.spark_settings import AUTHENTICATED, ENCRYPTED

SECRET = "spark.authenticate.secret"


def encryption_settings(master: SparkMaster, *, has_secret: bool) -> dict[str, str]:
    """The settings for applications on this master, all but the secret itself.

    Args:
        has_secret: The application is given ``spark.authenticate.secret``. A standalone cluster
            without one refuses applications that authenticate, so it gets no settings.
    """
    match master.kind:
        case MasterKind.LOCAL:
            return dict(AUTHENTICATED)
        case MasterKind.YARN | MasterKind.KUBERNETES:
            return dict(ENCRYPTED)
        case MasterKind.LOCAL_CLUSTER:
            return {}
        case _:
            return dict(ENCRYPTED) if has_secret else {}


def network_warnings(protection: Protection, spark: SparkContext) -> Iterator[str]:
    """Remarks for the user on connections that others on the network could read or change."""
    if protection is Protection.PLAIN:
        yield (
            "records, state and commands travel between machines without encryption, as "
            "weir.network.security=plain allows; choose it in trusted networks only"
        )
    conf = spark.getConf()
    encrypts = any(
        conf.get(name, "false") == "true"
        for name in ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
    )
    is_local = SparkMaster.parse(spark.master or "").kind is MasterKind.LOCAL
    if protection is Protection.ENCRYPTED and not is_local and not encrypts:
        yield (
            "Spark's own connections are not encrypted, and slots get their keys over them; set "
            "spark.authenticate and spark.network.crypto.enabled in the cluster"
        )
