"""A client of each role, logged in."""

import pytest
from django.test import Client

from controlplane.accounts.models import Role
from tests.database.frontend import rows


@pytest.fixture
def viewer(db: None) -> Client:
    """A browser of a viewer."""
    client = Client()
    client.force_login(rows.user(Role.VIEWER))
    return client


@pytest.fixture
def operator(db: None) -> Client:
    """A browser of an operator."""
    client = Client()
    client.force_login(rows.user(Role.OPERATOR))
    return client
