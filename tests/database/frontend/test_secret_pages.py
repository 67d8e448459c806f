"""The pages of secrets: a value goes in and never comes out."""

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.secrets import services
from controlplane.secrets.models import Secret
from tests import factories
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db

VALUE = "correct horse\nbattery staple"


@pytest.fixture
def browser(db: None) -> Client:
    client = Client()
    client.force_login(factories.user(Role.OPERATOR, "mara"))
    return client


def test_an_operator_stores_a_secret_and_sees_its_name(browser: Client) -> None:
    assert b"No secrets yet" in browser.get("/secrets/").content
    sent = {"name": "PASSWORD", "value": VALUE.replace("\n", "\r\n")}
    page = browser.post("/secrets/new", sent, follow=True)
    assert page.redirect_chain == [("/secrets/", 302)]
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": VALUE}
    shown = page.content.decode()
    assert "Secret PASSWORD was stored." in shown
    assert "mara" in shown
    assert "battery" not in shown


def test_a_form_with_errors_does_not_hold_the_value(browser: Client) -> None:
    page = browser.post("/secrets/new", {"name": "with-dash", "value": VALUE})
    assert page.status_code == 400
    shown = page.content.decode()
    assert 'value="with-dash"' in shown
    assert "A name has 1 to 64 letters" in shown
    assert "battery" not in shown
    assert not Secret.objects.exists()


def test_a_new_secret_does_not_replace_one_of_its_name(browser: Client) -> None:
    services.store(None, "PASSWORD", "the first")
    page = browser.post("/secrets/new", {"name": "PASSWORD", "value": VALUE})
    assert page.status_code == 400
    assert b"replace its value instead" in page.content
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": "the first"}


def test_a_value_is_replaced_and_the_jobs_that_name_it_are_listed(browser: Client) -> None:
    services.store(None, "PASSWORD", "the first")
    using = factories.job("using", options={"secrets": ["OTHER", "PASSWORD"]})
    factories.job("not-using", options={"secrets": ["OTHER"]})
    over = factories.job("over", status=JobStatus.FINISHED, options={"secrets": ["PASSWORD"]})
    shown = browser.get("/secrets/PASSWORD/replace").content.decode()
    assert using.pk in shown
    assert over.pk not in shown
    assert "not-using" not in shown
    assert "the first" not in shown
    browser.post("/secrets/PASSWORD/replace", {"value": VALUE})
    assert services.values_of(["PASSWORD"]) == {"PASSWORD": VALUE}


def test_a_secret_is_deleted_after_a_question(browser: Client) -> None:
    services.store(None, "PASSWORD", VALUE)
    asked = browser.get("/secrets/PASSWORD/delete").content.decode()
    assert "Delete secret PASSWORD?" in asked
    assert Secret.objects.exists()
    done = browser.post("/secrets/PASSWORD/delete", follow=True)
    assert b"Secret PASSWORD was deleted." in done.content
    assert not Secret.objects.exists()
    assert browser.get("/secrets/PASSWORD/delete").status_code == 404


def test_a_control_plane_without_keys_says_so_on_the_page(
    browser: Client, settings: Settings
) -> None:
    settings.WEIR_ENCRYPTION_KEYS = []
    page = browser.post("/secrets/new", {"name": "PASSWORD", "value": VALUE})
    assert page.status_code == 503
    assert b"WEIR_ENCRYPTION_KEYS" in page.content
    assert b"battery" not in page.content


def test_a_job_is_submitted_with_the_names_of_secrets(browser: Client) -> None:
    services.store(None, "A", VALUE)
    services.store(None, "B", VALUE)
    form = {"name": "flights", "kind": "module", "module": "weir.examples.flights", "key": "k"}
    refused = browser.post("/jobs/new", {**form, "secrets": "A, GONE"})
    assert refused.status_code == 400
    assert "There is no secret GONE; store it first" in refused.content.decode()
    page = browser.post("/jobs/new", {**form, "secrets": "B, A"}, follow=True)
    (job,) = page.context["job"].__class__.objects.all()
    assert job.options["secrets"] == ["A", "B"]
    configuration = browser.get(f"/jobs/{job.pk}/configuration/").content.decode()
    assert "A, B" in configuration
