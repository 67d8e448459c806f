"""The dashboard has what Grafana needs to import and show it."""

from collections import Counter
from itertools import combinations
from typing import Any

from tests.process.deploy.monitoring import DASHBOARD, panels

COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def test_it_is_a_new_dashboard_of_its_own() -> None:
    """An id would be that of another Grafana; the uid keeps links while it is imported again."""
    assert DASHBOARD["id"] is None
    assert DASHBOARD["uid"] == "weir"
    assert DASHBOARD["title"]
    assert DASHBOARD["schemaVersion"] >= 36  # Data sources are objects since then.


def test_data_source_and_jobs_are_chosen_on_the_page() -> None:
    source, job = VARIABLES["datasource"], VARIABLES["job"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert (job["type"], job["datasource"]) == ("query", SOURCE)
    assert job["multi"]
    assert (job["includeAll"], job["allValue"]) == (True, ".*")
    for panel in panels():
        assert panel["datasource"] == SOURCE, panel["title"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"]), panel["title"]


def test_every_panel_has_its_id_title_and_queries() -> None:
    everything = [*panels(), *panels("row")]
    assert len(panels()) > 20
    assert max(Counter(panel["id"] for panel in everything).values()) == 1
    assert all(panel["title"] for panel in everything)
    for panel in panels():
        references = [target["refId"] for target in panel["targets"]]
        assert references, panel["title"]
        assert len(set(references)) == len(references), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_panels_lie_side_by_side() -> None:
    places = [panel["gridPos"] for panel in (*panels(), *panels("row"))]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= COLUMNS and at["h"] > 0 for at in places)
    for one, other in combinations(places, 2):
        assert not overlap(one, other), (one, other)


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def meet(at: str, size: str) -> bool:
        return bool(one[at] < other[at] + other[size] and other[at] < one[at] + one[size])

    return meet("x", "w") and meet("y", "h")


def test_panels_of_jobs_show_the_chosen_ones() -> None:
    chosen = [
        target["expr"]
        for panel in panels()
        for target in panel["targets"]
        if "by (job" in target["expr"] and 'status="failed"' not in target["expr"]
    ]
    assert len(chosen) > 10
    assert all('job=~"$job"' in expression for expression in chosen)
