"""Which jobs the overview shows, as its address says it. Pure.

A link with these in it shows somebody else the same jobs; what makes no sense is as if it were not
there, so that an old link still leads to the list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlencode

from weir.protocol.lifecycle import JobStatus

SEARCH_LENGTH_MAX = 120  # No name and no id is longer.


class Group(StrEnum):
    """The states that somebody looks for together."""

    ALL = "all"
    ATTENTION = "attention"
    RUNNING = "running"
    CHANGING = "changing"
    FAILED = "failed"
    FINISHED = "finished"
    CANCELED = "canceled"


# The job's own states behind each group; those that need attention are found by more than that.
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
    """What the address asks for."""

    group: Group = Group.ALL
    search: str = ""
    page: str = ""  # As it stands in the address: the nearest page is shown.

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> Self:
        """From a request's query."""
        state = query.get("state", "")
        group = Group(state) if state in set(Group) else Group.ALL
        # PostgreSQL takes no text with a NUL in it, and nothing is called so.
        search = str(query.get("q", "")).replace("\0", "").strip()[:SEARCH_LENGTH_MAX]
        return cls(group, search, str(query.get("page", "")))

    def in_group(self, group: Group) -> Self:
        """Another group of the jobs that are searched for, from its first page."""
        return replace(self, group=group, page="")

    def at(self, page: int) -> Self:
        """Another page of the same."""
        return replace(self, page=str(page))

    @property
    def is_narrow(self) -> bool:
        """Whether some jobs may be left out."""
        return self.group is not Group.ALL or bool(self.search)

    def query(self) -> str:
        """With its question mark, as an address ends with it; empty where all is wanted."""
        given = {
            "state": "" if self.group is Group.ALL else self.group.value,
            "q": self.search,
            "page": "" if self.page == "1" else self.page,
        }
        found = urlencode({name: value for name, value in given.items() if value})
        return f"?{found}" if found else ""
