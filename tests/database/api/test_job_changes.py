"""Names, labels and the archive of jobs; parameters that are no texts; unknown query parameters."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from jobs import services
from jobs.models import Job
from tests import factories
from tests.database.api.conftest import API
from tests.database.api.test_jobs import MODULE, is_problem


def patched(api: APIClient, job: Job, **body: Any) -> Any:
    return api.patch(f"{API}jobs/{job.pk}", body, format="json")


def listed(api: APIClient, query: str = "") -> set[str]:
    return {job["name"] for job in api.get(f"{API}jobs{query}").json()["results"]}


def test_name_and_labels_of_a_job_are_changed(api: APIClient) -> None:
    job = factories.job("flights")
    answer = patched(api, job, name=" tariffs ", labels={"team": "prices"})
    assert answer.status_code == 200, answer.content
    assert (answer.json()["name"], answer.json()["labels"]) == ("tariffs", {"team": "prices"})
    assert patched(api, job, recovery_target_s=5).json()["labels"] == {"team": "prices"}
    entry = AuditEntry.objects.get(action="job.describe")
    assert entry.before == {"name": "flights", "labels": {}}
    assert entry.after == {"name": "tariffs", "labels": {"team": "prices"}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "\n"}, "name"),
        ({"name": "a\x07"}, "name"),
        ({"labels": {"": "x"}}, "labels"),
        ({"labels": {"a": "x" * 201}}, "labels"),
        ({"labels": {str(n): "x" for n in range(33)}}, "labels"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"status": "running"}, "status"),
    ],
)
def test_a_wrong_change_is_refused_whole(api: APIClient, body: dict[str, Any], field: str) -> None:
    job = factories.job("flights")
    answer = patched(api, job, recovery_target_s=5, **body)
    assert set(is_problem(answer, 400, "invalid")["errors"]) == {field}
    job.refresh_from_db()
    assert (job.name, job.labels, job.recovery_target_s) == ("flights", {}, None)


def test_jobs_are_found_by_label(api: APIClient) -> None:
    factories.job("a", labels={"team": "prices"})
    factories.job("b", labels={"team": "routes"})
    factories.job("c")
    assert listed(api, "?label=team") == {"a", "b"}
    assert listed(api, "?label=team:routes") == {"b"}


def test_a_job_is_submitted_with_labels(api: APIClient) -> None:
    labels = {"team": "prices", "tier": "1"}
    operation = api.post(f"{API}jobs", MODULE | {"labels": labels}, format="json").json()
    assert operation["parameters"]["labels"] == labels
    assert api.get(f"{API}jobs/{operation['job']}").json()["labels"] == labels
    assert len(listed(api, "?label=team:prices")) == 1
    assert AuditEntry.objects.get(action="job.submit").after["labels"] == labels


@pytest.mark.parametrize(
    ("labels", "field"),
    [({"": "x"}, "labels"), ({"a": "\x07"}, "labels"), ({"a": 1}, "labels.a"), ("a", "labels")],
)
def test_wrong_labels_submit_nothing(api: APIClient, labels: Any, field: str) -> None:
    answer = api.post(f"{API}jobs", MODULE | {"labels": labels}, format="json")
    assert set(is_problem(answer, 400, "invalid")["errors"]) == {field}
    assert not Job.objects.exists()


def test_a_key_with_other_labels_is_refused(api: APIClient) -> None:
    for labels, status in (({"a": "1"}, 202), ({"a": "1"}, 202), ({"a": "2"}, 422), ({}, 422)):
        body = MODULE | {"labels": labels}
        answer = api.post(f"{API}jobs", body, format="json", headers={"Idempotency-Key": "k"})
        assert answer.status_code == status, answer.content
    assert Job.objects.count() == 1


def test_an_archived_job_is_listed_only_on_request(api: APIClient) -> None:
    over = factories.job("over", status="canceled")
    factories.job("live")
    assert api.delete(f"{API}jobs/{over.pk}").status_code == 204
    assert api.delete(f"{API}jobs/{over.pk}").status_code == 204
    assert (listed(api), listed(api, "?archived=true")) == ({"live"}, {"over"})
    assert listed(api, "?archived=false") == {"live"}
    assert api.get(f"{API}jobs/{over.pk}").json()["archived_at"]
    assert AuditEntry.objects.filter(action="job.archive").count() == 1
    assert patched(api, over, archived=False).json()["archived_at"] is None
    assert listed(api) == {"live", "over"}


def test_a_job_that_is_not_over_is_not_archived(api: APIClient) -> None:
    job = factories.job(status="running")
    problem = is_problem(api.delete(f"{API}jobs/{job.pk}"), 409, "wrong_state")
    assert (problem["state"], "finished" in problem["allowed"]) == ("running", True)
    job.refresh_from_db()
    assert job.archived_at is None


def test_a_job_that_is_started_again_is_archived_no_longer(api: APIClient, operator: User) -> None:
    api.post(f"{API}jobs", MODULE, format="json")
    job = Job.objects.get()
    services.cancel(operator, job.pk)
    assert api.delete(f"{API}jobs/{job.pk}").status_code == 204
    services.restart(operator, job.pk)
    job.refresh_from_db()
    assert job.archived_at is None


def test_numbers_and_flags_reach_the_pipeline_as_json_has_them(api: APIClient) -> None:
    given = {"rate": 100, "share": 0.5, "repeat": True, "quiet": False, "output": "/data"}
    assert api.post(f"{API}jobs", MODULE | {"parameters": given}, format="json").status_code == 202
    assert Job.objects.get().options["parameters"] == {
        "rate": "100",
        "share": "0.5",
        "repeat": "true",
        "quiet": "false",
        "output": "/data",
    }


@pytest.mark.parametrize("value", ["null", "[1]", '{"a": 1}', "1e999"])
def test_a_parameter_that_is_no_single_value_is_refused(api: APIClient, value: str) -> None:
    pipeline = '{"kind": "module", "module": "weir.examples.flights"}'
    body = f'{{"name": "a", "pipeline": {pipeline}, "parameters": {{"x": {value}}}}}'
    answer = api.post(f"{API}jobs", body, content_type="application/json")
    assert set(is_problem(answer, 400, "invalid")["errors"]) == {"parameters.x"}
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("method", "path", "unknown", "known"),
    [
        ("get", "jobs", "statsu", "status"),
        ("get", "jobs", "PAGE_SIZE", "page_size"),
        ("get", "operations", "sort", "ordering"),
        ("get", "me", "x", ""),
        ("post", "jobs", "wait", ""),
        ("get", "", "page", ""),
    ],
)
def test_an_unknown_query_parameter_is_refused_with_the_known_ones(
    api: APIClient, method: str, path: str, unknown: str, known: str
) -> None:
    answer = getattr(api, method)(f"{API}{path}?{unknown}=1")
    problem = is_problem(answer, 400, "invalid")
    assert list(problem["errors"]) == [unknown]
    assert (known or "takes none") in problem["detail"]


def test_a_method_that_a_resource_has_not_stays_405(api: APIClient) -> None:
    is_problem(api.put(f"{API}jobs?x=1"), 405, "method_not_allowed")
    assert api.head(f"{API}jobs?status=running").status_code == 200
    assert api.head(f"{API}jobs?x=1").status_code == 400


def test_a_known_parameter_of_one_method_is_unknown_to_another(api: APIClient) -> None:
    assert api.get(f"{API}jobs?status=running").status_code == 200
    is_problem(api.post(f"{API}jobs?status=running", MODULE, format="json"), 400, "invalid")
    assert not Job.objects.exists()


def test_the_root_leads_to_everything(api: APIClient) -> None:
    root = api.get(API).json()
    assert {"jobs", "operations", "savepoints", "rules"} <= set(root["resources"])
    for url in (*root["resources"].values(), root["me"], root["schema"], root["dashboard"]):
        assert url.startswith("http://testserver/")
    assert api.get(root["resources"]["uploads"]).status_code == 200
