"""Somebody at the pages in a browser."""

from controlplane.accounts.models import Role
from tests.frontend import rows
from tests.frontend.browser import Window


def log_in(window: Window, role: Role = Role.OPERATOR) -> None:
    """Make a user of this role and log in by the form; the list of jobs follows."""
    window.log_in(rows.user(role).username, rows.PASSWORD)
