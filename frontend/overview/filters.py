"""The filters of the overview, as its address has them. Pure.

A shared link shows the same jobs; an invalid value counts as absent, so that an old link still
leads to the list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlencode

from weir.protocol.lifecycle import JobStatus

SEARCH_LENGTH_MAX = 120  # No name and no id is longer.


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

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> Self:
        """From a request's query."""
        state = query.get("state", "")
        group = Group(state) if state in set(Group) else Group.ALL
        # PostgreSQL refuses text with a NUL, and no name has one.
        search = str(query.get("q", "")).replace("\0", "").strip()[:SEARCH_LENGTH_MAX]
        return cls(group, search, str(query.get("page", "")))

    def in_group(self, group: Group) -> Self:
        """The same search in another group, from its first page."""
        return replace(self, group=group, page="")

    def at(self, page: int) -> Self:
        """The same filters on another page."""
        return replace(self, page=str(page))

    @property
    def is_narrow(self) -> bool:
        """Whether some jobs may be left out."""
        return self.group is not Group.ALL or bool(self.search)

    def query(self) -> str:
        """The query of the address with its question mark; empty without filters."""
        given = {
            "state": "" if self.group is Group.ALL else self.group.value,
            "q": self.search,
            "page": "" if self.page == "1" else self.page,
        }
        query = urlencode({name: value for name, value in given.items() if value})
        return f"?{query}" if query else ""
