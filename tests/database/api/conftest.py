"""Clients of the API: by token, by login, anonymous."""

from pathlib import Path

import pytest
from pytest_django import Settings
from rest_framework.test import APIClient

from controlplane.accounts.models import Role, User
from tests import factories

API = "/api/v1/"


@pytest.fixture(autouse=True)
def _places(settings: Settings, tmp_path: Path) -> None:
    """Files of a test stay with the test; no process listens to wake-ups."""
    settings.WEIR_UPLOADS = tmp_path / "uploads"
    settings.WEIR_DRIVERS = tmp_path / "drivers"
    settings.WEIR_CHECKPOINT_ROOT = str(tmp_path / "checkpoints")
    settings.WEIR_SCRIPT_ROOTS = [tmp_path / "scripts"]


@pytest.fixture
def operator(db: None) -> User:
    """A user who may change things."""
    return factories.user(Role.OPERATOR, "mara")


@pytest.fixture
def admin(db: None) -> User:
    """A user who may do everything."""
    return factories.user(Role.ADMIN, "root")


def client_of(user: User, role: str | None = None) -> APIClient:
    """A client with a token of the user."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {factories.secret_of(user, role)}")
    return client


def login_of(user: User) -> APIClient:
    """A client with a session of the user."""
    client = APIClient()
    assert client.login(username=user.username, password=factories.PASSWORD)
    return client


@pytest.fixture
def api(operator: User) -> APIClient:
    """An operator's token."""
    return client_of(operator)


@pytest.fixture
def admin_api(admin: User) -> APIClient:
    """An admin's token."""
    return client_of(admin)


@pytest.fixture
def anonymous(db: None) -> APIClient:
    """A client without credentials."""
    return APIClient()
