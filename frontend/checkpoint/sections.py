"""The part of each section that a checkpoint's page shows, and the addresses of other parts.

An address holds the choices in all sections, so that a link to any view of the page can be shared:
``?chain=hourly&sort=-state``.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict

from checkpoints.models import Checkpoint
from controlplane.base.formatting import number, plural
from frontend.base import in_flight
from frontend.base.query_parameters import BIGINT_MAX, whole_number
from frontend.checkpoint import details, queries

SUBTASKS_TOGETHER_MAX = 40  # Up to this number the timeline shows all of them at once.
SUBTASKS_SLOWEST = 40  # Of one chain, with more of them.
SUBTASKS_MAX = 10_000  # Of one chain, in one picture.
PAGES_MAX = 10_000

Json = dict[str, Any]


class Sections:
    """The part of each section that an address selects, and the addresses of other parts."""

    def __init__(self, given: QueryDict, base: str) -> None:
        self._given = {name: given[name] for name in self._NAMES if given.get(name)}
        self._base = base
        self.chain = given.get("chain", "").replace("\0", "")
        self.shows_all = given.get("all") == "1"
        sort = given.get("sort", "-total")
        self.sort = sort if sort.removeprefix("-") in queries.ACK_ORDERINGS else "-total"
        self.operator = given.get("operator", "").replace("\0", "")
        self.page = min(whole_number(given.get("page"), BIGINT_MAX) or 1, PAGES_MAX)

    _NAMES = ("chain", "all", "sort", "operator", "page")

    def address(self, section: str, **changes: object) -> str:
        """The page's address with another part of a section."""
        query = urlencode({k: v for k, v in (self._given | changes).items() if v})
        return f"{self._base}{'?' if query else ''}{query}#{section}"

    def figure(self, name: str, **wanted: object) -> str:
        """The address of a figure's data."""
        query = urlencode({k: v for k, v in wanted.items() if v})
        return f"{self._base}figures/{name}{'?' if query else ''}{query}"


def timeline(checkpoint: Checkpoint, operators: list[Any], given: Sections) -> Json:
    """The timeline by chain, or of a chain's subtasks; few subtasks are all shown at once."""
    spans = queries.chain_spans(checkpoint)
    total = sum(span.count for span in spans)
    chains = details.chains(spans, operators)
    for row in chains:
        row["url"] = given.address("timeline", chain=row["uid"], all="")
    if given.chain:
        span = next((span for span in spans if span.chain == given.chain), None)
        if span is None:
            return {"chains": chains, "total": total, "unknown": given.chain, "rows": []}
        rows = queries.subtask_phases(checkpoint, span.chain, at_most=SUBTASKS_SLOWEST)
        is_cut = span.count > len(rows)
        return {
            "chains": chains,
            "total": total,
            "chain": span.chain,
            "names": next((row["names"] for row in chains if row["uid"] == span.chain), ""),
            "rows": details.subtasks(rows),
            "count": number(span.count),
            "is_cut": is_cut,
            "shows_all": given.shows_all and is_cut,
            "back": given.address("timeline", chain="", all=""),
            "all": given.address("timeline", all="1"),
            "slowest": given.address("timeline", all=""),
            "figure": given.figure(
                "timeline", chain=span.chain, all="1" if given.shows_all and is_cut else ""
            ),
        }
    together = 0 < total <= SUBTASKS_TOGETHER_MAX
    rows = (
        queries.subtask_phases(checkpoint, None, at_most=SUBTASKS_TOGETHER_MAX, in_order=True)
        if together
        else []
    )
    return {
        "chains": chains,
        "total": total,
        "rows": details.subtasks(streamwise(rows, operators)),
        "figure": given.figure("timeline"),
    }


def streamwise(rows: list[queries.SubtaskPhases], operators: list[Any]) -> list[Any]:
    order = {row.uid: at for at, row in enumerate(operators)}
    return sorted(rows, key=lambda row: (order.get(row.chain, len(order)), row.chain, row.index))


ACK_COLUMNS = (
    # Sort key, heading, explanation.
    ("subtask", "Subtask", "The operator subtask that snapshotted its state"),
    ("acknowledged", "Acknowledged", "From the trigger to its acknowledgement"),
    ("start_delay", "Start delay", "From the trigger to its first barrier"),
    ("alignment", "Alignment", "From its first barrier to its last"),
    ("sync", "Sync", "The synchronous part of the snapshot, during which processing is paused"),
    ("async", "Async", "The asynchronous part: writing while processing goes on"),
    ("total", "Total", "From the trigger until its snapshot was durable"),
    ("state", "State size", "The complete state of the subtask"),
    (
        "written",
        "Written",
        "The bytes of state that this checkpoint wrote; earlier ones had written what is shared",
    ),
    (
        "during",
        "Alignment bytes",
        "Bytes that the subtask processed during its alignment",
    ),
    ("in_flight", "In-flight", in_flight.PERSISTED),
)


def acks(checkpoint: Checkpoint, given: Sections, counts: Mapping[str, int]) -> Json:
    rows, has_more = queries.acks(
        checkpoint, sort=given.sort, operator=given.operator, page=given.page
    )
    total = counts.get(given.operator, 0) if given.operator else sum(counts.values())
    first = (given.page - 1) * queries.ACKS_LISTED + 1
    return {
        "rows": details.acks(rows, checkpoint.triggered_at),
        "columns": [_column(given, *column) for column in ACK_COLUMNS],
        "operators": [
            {"uid": uid, "count": count, "is_chosen": uid == given.operator}
            for uid, count in counts.items()
            if count
        ],
        "operator": given.operator,
        "text": f"{first:,} to {first + len(rows) - 1:,} of {plural(total, 'acknowledgement')}"
        if rows
        else "",
        "total": total,
        "previous": given.address("acknowledgements", page=given.page - 1)
        if given.page > 1
        else "",
        "next": given.address("acknowledgements", page=given.page + 1) if has_more else "",
        "all": given.address("acknowledgements", operator="", page=""),
    }


def _column(given: Sections, name: str, text: str, means: str) -> Json:
    current, is_down = given.sort.removeprefix("-"), given.sort.startswith("-")
    # Numbers begin with the largest, which matter most.
    turned = ("" if is_down else "-") if current == name else ("" if name == "subtask" else "-")
    return {
        "name": name,
        "text": text,
        "help": means,
        "is_number": name != "subtask",
        "sorted": ("descending" if is_down else "ascending") if current == name else "",
        "url": given.address("acknowledgements", sort=f"{turned}{name}", page=""),
    }
