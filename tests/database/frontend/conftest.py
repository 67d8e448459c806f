"""A client of each role, logged in."""

import pytest
from django.test import Client

from controlplane.accounts.models import Role
from tests.database.frontend import rows


@pytest.fixture
def viewer(db: None) -> Client:
    """A browser of somebody who may only look."""
    client = Client()
    client.force_login(rows.user(Role.VIEWER))
    return client


@pytest.fixture
def operator(db: None) -> Client:
    """A browser of somebody who may act."""
    client = Client()
    client.force_login(rows.user(Role.OPERATOR))
    return client
