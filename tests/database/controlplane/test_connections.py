"""The connections to the database, as the kernel and the server have them."""

import os
import socket
import sys

import pytest
from django.db import connection

NOTICED_S = 30.0


@pytest.mark.skipif(sys.platform != "linux", reason="the options are those of Linux")
def test_a_server_that_vanished_is_noticed_within_half_a_minute(db: None) -> None:
    """It sends no end: a probe stays without an answer, or a query without an acknowledgement."""
    connection.ensure_connection()
    with socket.socket(fileno=os.dup(connection.connection.fileno())) as kernels:

        def option(name: int) -> int:
            return kernels.getsockopt(socket.IPPROTO_TCP, name)

        probed_s = option(socket.TCP_KEEPIDLE) + (
            option(socket.TCP_KEEPINTVL) * option(socket.TCP_KEEPCNT)
        )
        assert kernels.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert probed_s <= NOTICED_S
        assert 0 < option(socket.TCP_USER_TIMEOUT) / 1_000 <= NOTICED_S


def test_no_default_of_a_role_or_a_database_changes_the_isolation(db: None) -> None:
    """A setting of the client goes before both. Source: PostgreSQL, view pg_settings."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setting, source FROM pg_settings WHERE name = 'default_transaction_isolation'"
        )
        assert cursor.fetchone() == ("read committed", "client")
