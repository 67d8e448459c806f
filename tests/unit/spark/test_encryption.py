"""Spark's own connections: the settings by master, and the remarks on open ones."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.channels.authority import EncryptedNetwork, PlainNetwork, Protection, open_network
from weir.config import ChannelConfig, NetworkSecurity
from weir.errors import ConfigError
from weir.ids import JobId
from weir.spark.encryption import encryption_settings, network_warnings
from weir.spark_master import SparkMaster
from weir.spark_settings import AUTHENTICATED, ENCRYPTED

JOB = JobId("job")


@pytest.mark.parametrize(
    ("master", "has_secret", "settings"),
    [
        ("local", False, AUTHENTICATED),
        ("local[2,1000]", False, AUTHENTICATED),
        ("local-cluster[2,1,1024]", False, {}),
        ("yarn", False, ENCRYPTED),
        ("k8s://https://cluster:6443", False, ENCRYPTED),
        ("spark://host:7077", True, ENCRYPTED),
        ("spark://host:7077", False, {}),  # The cluster's secret is not known: Spark would refuse.
    ],
)
def test_settings_by_master(master: str, has_secret: bool, settings: dict[str, str]) -> None:
    assert encryption_settings(SparkMaster.parse(master), has_secret=has_secret) == settings


def spark_with(master: str, **settings: str) -> Any:
    conf = {key.replace("_", "."): value for key, value in settings.items()}
    return cast(Any, SimpleNamespace(master=master, getConf=lambda: conf))


@pytest.mark.parametrize(
    ("protection", "spark", "words"),
    [
        (Protection.ENCRYPTED, spark_with("spark://host:7077"), "Spark's own connections are not"),
        (Protection.PLAIN, spark_with("local[2]"), "travel between machines without encryption"),
        (Protection.ENCRYPTED, spark_with("yarn", spark_network_crypto_enabled="true"), ""),
        (Protection.ENCRYPTED, spark_with("local[2]"), ""),
        (Protection.LOCAL, spark_with("local[2]"), ""),
    ],
)
def test_remarks_on_connections_that_others_can_read(
    protection: Protection, spark: Any, words: str
) -> None:
    remarks = list(network_warnings(protection, spark))
    assert len(remarks) == bool(words)
    assert words in "".join(remarks)


@pytest.mark.parametrize(
    ("security", "host", "protection"),
    [
        ("auto", "127.0.0.1", Protection.LOCAL),
        ("auto", "localhost", Protection.LOCAL),
        ("auto", "10.1.2.3", Protection.ENCRYPTED),
        ("tls", "127.0.0.1", Protection.ENCRYPTED),
        ("plain", "127.0.0.1", Protection.LOCAL),
        ("plain", "10.1.2.3", Protection.PLAIN),
    ],
)
def test_only_a_network_within_one_machine_is_plain_unless_told(
    security: str, host: str, protection: Protection
) -> None:
    network = open_network(JOB, NetworkSecurity(security), host)
    assert network.protection is protection
    kind = EncryptedNetwork if protection is Protection.ENCRYPTED else PlainNetwork
    assert type(network) is kind


def test_a_host_without_an_address_is_told_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"set spark\.driver\.host"):
        open_network(JOB, NetworkSecurity.AUTO, "no.such.host.invalid")


def test_an_unknown_security_is_refused_by_name() -> None:
    assert ChannelConfig(security=cast(Any, "tls")).security is NetworkSecurity.TLS
    with pytest.raises(ConfigError, match="'none'; it is one of auto, tls, plain"):
        ChannelConfig(security=cast(Any, "none"))
