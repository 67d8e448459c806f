"""The pages of alerts: firing and past ones, acknowledged, silenced, and those of a job."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.alerts import alerting
from controlplane.alerts.kinds.base import Holding
from controlplane.alerts.models import Alert, Silence
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.deliveries.models import Delivery
from jobs.models import Job
from tests import factories
from tests.database.frontend.reading import words

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture
def alert(db: None) -> Alert:
    """An alert that fires about a job that exists."""
    rule = factories.rule("checkpoint_duration", name="Too slow", severity="critical")
    return factories.alert(rule, factories.job(), checkpoint=41)


def test_an_empty_list_says_what_to_do(viewer: Client) -> None:
    shown = words(viewer.get("/alerts/"))
    assert "None is firing now." in shown
    assert "No alerts yet" in shown
    assert "there is no enabled endpoint" in shown
    factories.endpoint()
    assert "there is no enabled endpoint" not in words(viewer.get("/alerts/"))


def test_the_list_has_each_alert_with_its_sentence(viewer: Client, alert: Alert) -> None:
    over = factories.rule(name="Over")
    factories.alert(over, state="resolved", summary="The job failed.")
    shown = viewer.get("/alerts/")
    text = words(shown)
    assert "1 firing now." in text
    assert "Firing Too slow Checkpoint 41 took 48 s. hourly-0 was busy" in text
    assert "Resolved Over The job failed." in text
    assert 'data-tone="bad" title="critical"' in shown.content.decode()
    assert f'href="/jobs/{alert.job}/"' in shown.content.decode()
    assert 'href="/jobs/flights-1/"' not in shown.content.decode()  # There is no such job.
    for query in ({"state": "firing"}, {"severity": "critical"}, {"job": alert.job}):
        narrow = words(viewer.get("/alerts/", query))
        assert "Checkpoint 41" in narrow, query
        assert "The job failed." not in narrow, query
    assert "No matching alerts" in words(viewer.get("/alerts/", {"job": "none"}))


def test_an_alert_has_its_evidence_and_its_links(viewer: Client, alert: Alert) -> None:
    endpoint = factories.endpoint(name="On call")
    delivery = factories.delivery(endpoint, factories.notice(str(alert.pk)))
    shown = viewer.get(f"/alerts/{alert.pk}")
    text = words(shown)
    assert "Checkpoint 41 took 48 s." in text
    assert "duration 48 s" in text
    assert "Lasted 11 min" in text
    for link in (
        f"/jobs/{alert.job}/checkpoints/41/",
        f"/alerts/rules/{alert.rule_id}",
        f"/alerts/deliveries/{delivery.pk}",
    ):
        assert f'href="{link}"' in shown.content.decode()
    assert "Firing to On call" in text
    assert "<button" not in shown.content.decode().partition("<main")[2]  # A viewer only reads.
    assert viewer.get(f"/alerts/{endpoint.pk}").status_code == 404


def test_the_links_of_a_notice_lead_to_pages(viewer: Client, settings: Settings) -> None:
    settings.WEIR_URL = "https://weir.example"
    job, now = factories.job(), clock.now()
    factories.endpoint()
    factories.checkpoint(job, 41)
    rule = factories.rule("checkpoint_duration")
    fired = Holding(summary="Checkpoint 41 took 48 s.", checkpoint=41)
    alert = alerting.new_alert(rule, job.pk, job.name, fired, began_at=now, now=now)
    alert.save()
    alerting.Teller(now).tell(alert)
    links = [url for _, url in Delivery.objects.get().notice["links"]]
    assert len(links) == 3
    for link in links:
        page = viewer.get(link.removeprefix(settings.WEIR_URL), follow=True)
        assert page.status_code == 200, link


def test_an_operator_acknowledges_with_name_and_time(operator: Client, alert: Alert) -> None:
    page = words(operator.get(f"/alerts/{alert.pk}"))
    assert "Acknowledge" in page
    done = operator.post(f"/alerts/{alert.pk}/acknowledge", follow=True)
    name = done.context["user"].username
    assert "The alert is acknowledged." in words(done)
    assert f"{name} looks after it, since" in words(done)
    assert b"/acknowledge" not in done.content
    assert AuditEntry.objects.filter(action="alert.acknowledge", actor_name=name).count() == 1
    assert name in words(operator.get("/alerts/"))


def test_a_resolved_alert_is_not_acknowledged(operator: Client, alert: Alert) -> None:
    alerting.end(alert, clock.now(), "The condition is over.")
    alert.save()
    assert "Acknowledge" not in words(operator.get(f"/alerts/{alert.pk}"))
    done = operator.post(f"/alerts/{alert.pk}/acknowledge", follow=True)
    assert "there is nothing to look after any more" in words(done)
    assert "The condition is over." in words(done)


@pytest.mark.parametrize(("lasts", "hours"), [("1", 1), ("8", 8), ("24", 24)])
def test_an_alert_is_silenced_for_a_while(
    operator: Client, alert: Alert, lasts: str, hours: int
) -> None:
    page = operator.get(f"/alerts/{alert.pk}").content.decode()
    query = f"job={alert.job}&amp;rule={alert.rule_id}"
    assert f'href="/alerts/silences/new?{query}"' in page
    form = operator.get("/alerts/silences/new", {"job": alert.job, "rule": alert.rule_id})
    shown = form.context["form"]
    assert (shown["job"].value(), shown["rule"].value()) == (alert.job, str(alert.rule_id))
    sent = {"job": alert.job, "rule": alert.rule_id, "lasts": lasts, "reason": "An upgrade"}
    done = operator.post("/alerts/silences/new", sent, follow=True)
    silence = Silence.objects.get()
    assert timedelta(0) < silence.until_at - clock.now() <= hours * HOUR
    assert silence.until_at - clock.now() > (hours - 0.5) * HOUR
    assert (silence.rule_id, silence.job) == (alert.rule_id, alert.job)
    assert "Active An upgrade rule Too slow, job flights-" in words(done)


def test_a_silence_lasts_until_a_time_that_is_given(operator: Client) -> None:
    sent: dict[str, Any] = {"lasts": "until", "reason": "Maintenance"}
    refused = operator.post("/alerts/silences/new", sent)
    assert refused.status_code == 400
    assert "Give a time." in words(refused)
    past = operator.post("/alerts/silences/new", sent | {"until_at": "2020-01-01T00:00"})
    assert past.status_code == 400
    assert "Give a time to come" in words(past)
    assert not Silence.objects.exists()
    until = (clock.now() + 5 * HOUR).replace(microsecond=0)
    operator.post("/alerts/silences/new", sent | {"until_at": f"{until:%Y-%m-%dT%H:%M:%S}"})
    assert Silence.objects.get().until_at == until


def test_a_silence_is_ended_early(operator: Client, viewer: Client) -> None:
    assert "No silences" in words(viewer.get("/alerts/silences/"))
    now = clock.now()
    silence = factories.silence(from_at=now - HOUR, until_at=now + HOUR, reason="An upgrade")
    factories.silence(from_at=now + HOUR, until_at=now + 2 * HOUR, reason="Another")
    assert "End now" not in words(viewer.get("/alerts/silences/"))
    page = words(operator.get("/alerts/silences/"))
    assert "Active An upgrade all alerts" in page
    assert "Planned Another" in page
    done = operator.post(f"/alerts/silences/{silence.pk}/end", follow=True)
    assert "Over An upgrade" in words(done)
    again = operator.post(f"/alerts/silences/{silence.pk}/end", follow=True)
    assert "The silence is over." in words(again)
    assert AuditEntry.objects.filter(action="silence.end").count() == 1


def test_a_silenced_alert_says_until_when_and_why(viewer: Client, alert: Alert) -> None:
    until = clock.now().replace(year=2031)
    alert.silence = factories.silence(until_at=until, reason="An upgrade")
    alert.is_silenced = True
    alert.save()
    page = words(viewer.get(f"/alerts/{alert.pk}"))
    assert "Silenced until 2031-" in page
    assert ": An upgrade" in page
    assert "A silence holds them back." in page
    assert "Too slow silenced" in words(viewer.get("/alerts/"))


def test_silences_count_as_they_are_now_while_an_alert_fires(viewer: Client, alert: Alert) -> None:
    now = clock.now()
    over = factories.silence(from_at=now - 2 * HOUR, until_at=now - HOUR, reason="An upgrade")
    Alert.objects.filter(pk=alert.pk).update(silence=over, is_silenced=True)
    factories.silence(job="another-job", reason="Another")
    assert "Silenced" not in words(viewer.get(f"/alerts/{alert.pk}"))
    factories.silence(job=alert.job, reason="Begun since")
    assert "Begun since" in words(viewer.get(f"/alerts/{alert.pk}"))
    alert.refresh_from_db()
    alerting.end(alert, now, "The condition is over.")
    alert.save()
    page = words(viewer.get(f"/alerts/{alert.pk}"))
    assert "An upgrade" in page
    assert "Begun since" not in page


def test_a_job_has_its_alerts_and_the_rules_that_watch_it(viewer: Client, alert: Alert) -> None:
    factories.rule(name="Of flights", job_pattern="fli*")
    factories.rule(name="Of others", job_pattern="orders*")
    factories.rule(name="Of another", job="another-job")
    factories.alert(factories.rule(name="Elsewhere", job="flights-1"))
    factories.silence(job=alert.job, reason="About it")
    factories.silence(job="another-job", reason="About another")
    page = words(viewer.get(f"/jobs/{alert.job}/alerts/"))
    assert "Checkpoint 41 took 48 s." in page
    for name in ("Too slow", "Of flights", "About it"):
        assert name in page
    for name in ("Of others", "Of another", "Elsewhere", "About another"):
        assert name not in page
    quiet = factories.job("quiet")
    assert "No rule has fired for this job" in words(viewer.get(f"/jobs/{quiet.pk}/alerts/"))


def test_the_page_of_a_job_says_which_alerts_fire(viewer: Client, alert: Alert) -> None:
    factories.alert(factories.rule(name="Over"), None, job=alert.job, state="resolved")
    page = viewer.get(f"/jobs/{alert.job}/")
    assert "Too slow : Checkpoint 41 took 48 s." in words(page)
    assert [item["rule"] for item in page.context["details"]["firing"]] == ["Too slow"]
    before = page.context["live"]["revisions"]
    alerting.acknowledge(None, alert.pk)
    alerting.end(alert, clock.now(), "The condition is over.")
    alert.save()
    after = viewer.get(f"/jobs/{alert.job}/").context
    assert after["details"]["firing"] == []
    assert after["live"]["revisions"]["alerts"] != before["alerts"]


def test_alerts_are_marks_on_the_history_chart(viewer: Client, alert: Alert) -> None:
    job = Job.objects.get(pk=alert.job)
    factories.checkpoint(job, 1)
    Alert.objects.filter(pk=alert.pk).update(fired_at=clock.now(), began_at=clock.now())
    figure = viewer.get(f"/jobs/{job.pk}/figures/history").json()
    (marks,) = [trace for trace in figure["data"] if trace["name"] == "Alert"]
    assert marks["marker"]["color"] == ["var(--bad)"]
    assert marks["customdata"][0][-1] == f"/alerts/{alert.pk}"
    etag = viewer.get(f"/jobs/{alert.job}/figures/history").headers["ETag"]
    factories.alert(factories.rule(), job, fired_at=clock.now())
    again = viewer.get(f"/jobs/{alert.job}/figures/history", headers={"If-None-Match": etag})
    assert again.status_code == 200
    same = viewer.get(
        f"/jobs/{alert.job}/figures/history", headers={"If-None-Match": again.headers["ETag"]}
    )
    assert same.status_code == 304
