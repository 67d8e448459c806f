"""A client of each role, logged in."""

import pytest
from django.test import Client

from controlplane.accounts.models import Role
from tests import factories


@pytest.fixture
def viewer(db: None) -> Client:
    """A browser of a viewer."""
    client = Client()
    client.force_login(factories.user(Role.VIEWER))
    return client


@pytest.fixture
def operator(db: None) -> Client:
    """A browser of an operator."""
    client = Client()
    client.force_login(factories.user(Role.OPERATOR))
    return client
