import pytest
from django.http import QueryDict

from frontend.overview.filters import STATUSES, Group, Wanted
from weir.protocol.lifecycle import JobStatus


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", Wanted()),
        ("state=running&q=fli&page=3", Wanted(Group.RUNNING, "fli", "3")),
        ("state=none&page=x", Wanted(page="x")),
        ("q=%00%20a%00b%20", Wanted(search="ab")),
        ("q=" + "x" * 1_000, Wanted(search="x" * 120)),
    ],
)
def test_an_address_says_what_is_wanted(query: str, wanted: Wanted) -> None:
    assert Wanted.read(QueryDict(query)) == wanted


@pytest.mark.parametrize(
    "wanted",
    [Wanted(), Wanted(Group.FAILED), Wanted(search="a&state=b c“"), Wanted(Group.ALL, "a", "2")],
)
def test_what_is_wanted_comes_back_from_its_address(wanted: Wanted) -> None:
    assert Wanted.read(QueryDict(wanted.query().removeprefix("?"))) == wanted


def test_another_group_begins_at_its_first_page_and_keeps_the_search() -> None:
    wanted = Wanted(Group.RUNNING, "flights", "4")
    assert wanted.in_group(Group.FAILED).query() == "?state=failed&q=flights"
    assert wanted.in_group(Group.ALL).query() == "?q=flights"
    assert wanted.at(5).query() == "?state=running&q=flights&page=5"
    assert wanted.at(1).query() == "?state=running&q=flights"


def test_every_state_belongs_to_one_group() -> None:
    grouped = [status for statuses in STATUSES.values() for status in statuses]
    assert sorted(grouped) == sorted(JobStatus)
