"""Logging in to the pages in a browser."""

from controlplane.accounts.models import Role
from tests import factories
from tests.browser.browser import Window


def log_in(window: Window, role: Role = Role.OPERATOR) -> None:
    """Make a user of this role and log in by the form; the list of jobs follows."""
    window.log_in(factories.user(role).username, factories.PASSWORD)
