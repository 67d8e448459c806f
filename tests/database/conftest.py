"""Tests on a PostgreSQL database."""

import pytest
from django.db.models.signals import post_migrate
from django.template.base import Template


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> None:
    """The test database, where tests of real transactions leave no rows.

    Django would make its permissions anew after each of them; Weir has roles instead.
    """
    permissions = "django.contrib.auth.management.create_permissions"
    assert post_migrate.disconnect(dispatch_uid=permissions)


@pytest.fixture
def plain_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered as in production, for tests that open pages by the hundred.

    Django's test environment copies the context of each template for the test client.
    """
    monkeypatch.setattr(Template, "_render", lambda self, context: self.nodelist.render(context))
