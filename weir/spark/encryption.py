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

import re
from collections.abc import Iterator

from pyspark import SparkContext

from weir.channels.authority import Protection

SECRET = "spark.authenticate.secret"

_LOCAL = re.compile(r"local(\[.*\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[.*\]")
_MAKES_SECRETS = re.compile(r"yarn|k8s://.*")

AUTHENTICATED = {"spark.authenticate": "true"}
ENCRYPTED = {
    **AUTHENTICATED,
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}


def encryption_settings(master: str, *, has_secret: bool) -> dict[str, str]:
    """The settings for applications on this master, all but the secret itself.

    Args:
        has_secret: The application is given ``spark.authenticate.secret``. A standalone cluster
            without one refuses applications that authenticate, so it gets no settings.
    """
    if _LOCAL.fullmatch(master):
        return dict(AUTHENTICATED)
    if _LOCAL_CLUSTER.fullmatch(master):
        return {}
    if has_secret or _MAKES_SECRETS.fullmatch(master):
        return dict(ENCRYPTED)
    return {}


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
    is_local = _LOCAL.fullmatch(spark.master or "") is not None
    if protection is Protection.ENCRYPTED and not is_local and not encrypts:
        yield (
            "Spark's own connections are not encrypted, and slots get their keys over them; set "
            "spark.authenticate and spark.network.crypto.enabled in the cluster"
        )
