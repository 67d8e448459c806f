"""The filters of the overview, as its address has them. Pure.

A shared link shows the same jobs; an invalid value counts as absent, so that an old link still
leads to the list.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlencode

from jobs import labels
from weir.protocol.lifecycle import JobStatus

SEARCH_LENGTH_MAX = 120  # No name and no id is longer.
LABELS_MAX = 5
LABEL_LENGTH_MAX = 2 * labels.LABEL_LENGTH_MAX + 1  # A name, a colon and a text.


class Group(StrEnum):
    """A filter that joins states of jobs."""

    ALL = "all"
    ATTENTION = "attention"
    RUNNING = "running"
    CHANGING = "changing"
    FAILED = "failed"
    FINISHED = "finished"
    CANCELED = "canceled"
    ARCHIVED = "archived"  # In this group only.


# The job states of each group; ATTENTION and ARCHIVED depend on more than the state.
STATUSES: Mapping[Group, tuple[JobStatus, ...]] = {
    Group.RUNNING: (JobStatus.RUNNING,),
    Group.CHANGING: (
        JobStatus.CREATED,
        JobStatus.INITIALIZING,
        JobStatus.FAILING,
        JobStatus.RESTARTING,
        JobStatus.CANCELLING,
    ),
    Group.FAILED: (JobStatus.FAILED,),
    Group.FINISHED: (JobStatus.FINISHED,),
    Group.CANCELED: (JobStatus.CANCELED,),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters in the address."""

    group: Group = Group.ALL
    search: str = ""
    page: str = ""  # As in the address; the nearest existing page is shown.
    labels: tuple[str, ...] = ()  # Names, or ``name:text``; a job has all of them.

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> Self:
        """From a request's query."""
        state = query.get("state", "")
        group = Group(state) if state in set(Group) else Group.ALL
        # PostgreSQL refuses text with a NUL, and no name has one.
        search = str(query.get("q", "")).replace("\0", "").strip()[:SEARCH_LENGTH_MAX]
        getlist = getattr(query, "getlist", lambda name: [query[name]] if name in query else [])
        return cls(group, search, str(query.get("page", "")), _labels(getlist("label")))

    def in_group(self, group: Group) -> Self:
        """The same search in another group, from its first page."""
        return replace(self, group=group, page="")

    def with_label(self, label: str) -> Self:
        """The same filters and a label, from their first page."""
        return replace(self, labels=_labels([*self.labels, label]), page="")

    def without_label(self, label: str) -> Self:
        """The same filters but a label, from their first page."""
        return replace(self, labels=tuple(one for one in self.labels if one != label), page="")

    def at(self, page: int) -> Self:
        """The same filters on another page."""
        return replace(self, page=str(page))

    @property
    def is_narrow(self) -> bool:
        """Whether some jobs may be left out."""
        return self.group is not Group.ALL or bool(self.search or self.labels)

    def query(self) -> str:
        """The query of the address with its question mark; empty without filters."""
        given = {
            "state": "" if self.group is Group.ALL else self.group.value,
            "q": self.search,
            "label": self.labels,
            "page": "" if self.page == "1" else self.page,
        }
        query = urlencode({name: value for name, value in given.items() if value}, doseq=True)
        return f"?{query}" if query else ""


def _labels(given: Iterable[Any]) -> tuple[str, ...]:
    texts = (str(label).replace("\0", "").strip()[:LABEL_LENGTH_MAX] for label in given)
    return tuple(dict.fromkeys(text for text in texts if text))[:LABELS_MAX]
