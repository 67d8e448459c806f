"""The lineage of a job's checkpoints as a tree to be drawn. Pure: values in, rows of a tree out.

An attempt is restored from one checkpoint, its base (see ``weir.protocol.lineage``). An attempt
restored from the newest checkpoint continues its *lane*; one that goes back begins another lane::

    attempt 1   1 2 3 4 5 6          lane 0
    attempt 2           4 -> 7 8     lane 1, from 4
    attempt 3               6 -> 9   lane 0 again: 6 is its newest

The drawing consists of *strands*. The first strand is the history of the running state from the
beginning on, whichever lanes it crosses; it is drawn as a straight line. The others were left
behind and branch off: the rest of a lane that the line leaves, and lanes that it never joins.

A job may have taken a hundred thousand checkpoints. Only some are *points*: the bases of strands,
savepoints, checkpoints that forks began with, and the newest of each strand. Those between points
are counted: a ``Gap`` has their numbers.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

COLUMNS_MAX = 7  # Strands beyond these columns are counted, not drawn.
_END = 2**62


@dataclass(frozen=True, slots=True)
class Restored:
    """An attempt and its base; None: the beginning."""

    attempt: int
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class Taken:
    """The checkpoints of an attempt, by number: the first, the last, the newest possible base."""

    attempt: int
    first: int
    last: int
    newest: int | None  # Completed and not a plain savepoint; None: there is none.


@dataclass(slots=True)
class Lane:
    """Attempts, each of which was restored from the newest checkpoint of those before it."""

    index: int
    base: int | None = None  # The base of its first attempt.
    parent: int | None = None  # The base's lane; None: the beginning, or another job's checkpoint.
    attempts: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # Numbers, ascending.
    newest: int | None = None


def lanes(restored: Iterable[Restored], taken: Iterable[Taken]) -> list[Lane]:
    """The lanes of a job's attempts; the last lane is that of the last attempt.

    Attempts of which only checkpoints are known continue the lane before them.
    """
    ordered: list[Lane] = []
    current: Lane | None = None
    by_attempt = {one.attempt: one for one in taken}
    bases = {one.attempt: one.checkpoint for one in restored}
    firsts: list[int] = []  # The first numbers of the spans so far; ``owners`` has their lanes.
    owners: list[Lane] = []
    for attempt in sorted(by_attempt.keys() | bases.keys()):
        own, base = by_attempt.get(attempt), bases.get(attempt)
        if current is not None and base is None and (own is None or attempt not in bases):
            lane = current  # Its base is not known, or it has not begun.
        else:
            lane = _lane_of(ordered, firsts, owners, base)
        lane.attempts.append(attempt)
        if own is not None:
            lane.spans.append((own.first, own.last))
            firsts.append(own.first)
            owners.append(lane)
            if own.newest is not None:
                lane.newest = max(own.newest, lane.newest or 0)
        current = lane
    if current is not None:  # The lane of the last attempt comes last.
        ordered.remove(current)
        ordered.append(current)
        _renumber(ordered)
    return ordered


def _lane_of(
    ordered: list[Lane], firsts: Sequence[int], owners: Sequence[Lane], base: int | None
) -> Lane:
    holder = None
    if base is not None:
        at = bisect_right(firsts, base) - 1
        holder = owners[at] if at >= 0 else None
        if holder is not None and (holder.newest is None or holder.newest <= base):
            return holder
    last = ordered[-1] if ordered else None
    parent = None if holder is None else holder.index
    if last is not None and last.newest is None and (last.base, last.parent) == (base, parent):
        return last  # An attempt from the same base took no checkpoint.
    lane = Lane(len(ordered), base, parent)
    ordered.append(lane)
    return lane


def _renumber(ordered: Sequence[Lane]) -> None:
    now = {lane.index: at for at, lane in enumerate(ordered)}
    for lane in ordered:
        lane.index = now[lane.index]
        lane.parent = None if lane.parent is None else now[lane.parent]


@dataclass(slots=True)
class Strand:
    """A line of the drawing: pieces of lanes, each between two numbers."""

    index: int
    is_live: bool  # The history of the running state.
    base: int | None = None  # The checkpoint from which it branches off.
    parent: int | None = None  # The base's strand; None: the beginning, or another job's.
    pieces: list[tuple[Lane, int, int]] = field(default_factory=list)  # From (not incl.), to.
    spans: list[tuple[int, int]] = field(default_factory=list)  # Numbers on it, both incl.
    points: list[int] = field(default_factory=list)

    @property
    def newest(self) -> int | None:
        """The newest checkpoint of the strand that can be a base."""
        newest_base = None
        for lane, after, to in self.pieces:
            if lane.newest is not None and lane.newest > after:
                newest_base = min(lane.newest, to)
        return newest_base


def strands(ordered: Sequence[Lane]) -> list[Strand]:
    """The line of the running state, then the strands that branch off, oldest first."""
    if not ordered:
        return []
    until: dict[int, int] = {}  # The number up to which the line follows each lane.
    here: Lane | None = ordered[-1]
    to = _END
    path: list[Lane] = []
    while here is not None:
        until[here.index] = to
        path.append(here)
        to = here.base or 0
        here = None if here.parent is None else ordered[here.parent]
    path.reverse()
    line = Strand(0, True, base=path[0].base)
    line.pieces = [(lane, 0, until[lane.index]) for lane in path]
    drawn = [line]
    of_lane: dict[int, Strand] = {}  # Strands beside the line.
    rests = sorted(
        (lane for lane in ordered if (lane.newest or 0) > until.get(lane.index, -1)),
        key=lambda lane: until.get(lane.index, lane.base or 0),
    )
    for lane in rests:
        to = until.get(lane.index, -1)
        strand = Strand(len(drawn), False, base=to if to >= 0 else lane.base)
        strand.pieces = [(lane, max(to, 0), _END)]
        drawn.append(strand)
        of_lane[lane.index] = strand
    for lane in rests:
        strand = of_lane[lane.index]
        if lane.index in until:
            strand.parent = 0
        elif lane.parent is not None and lane.base is not None:
            is_on_line = lane.base <= until.get(lane.parent, -1)
            above = of_lane.get(lane.parent)
            strand.parent = 0 if is_on_line else None if above is None else above.index
    _spread(drawn)
    return drawn


def _spread(drawn: Sequence[Strand]) -> None:
    """Give each strand its numbers, in as few spans as possible."""
    pieces = sorted(
        (max(first, after + 1), min(last, to), strand.index)
        for strand in drawn
        for lane, after, to in strand.pieces
        for first, last in lane.spans
        if max(first, after + 1) <= min(last, to)
    )
    before = None
    for first, last, index in pieces:
        spans = drawn[index].spans
        if before == index:
            first = spans.pop()[0]
        spans.append((first, last))
        before = index


def place(drawn: Sequence[Strand], numbers: Iterable[int]) -> None:
    """Make points of these checkpoints, of the strands' bases, and of the newest of each."""
    wanted = set(numbers)
    for strand in drawn:
        if strand.parent is not None and strand.base is not None:
            wanted.add(strand.base)
        if strand.newest is not None:
            wanted.add(strand.newest)
    owners = sorted((*span, strand.index) for strand in drawn for span in strand.spans)
    for number in sorted(wanted):
        at = bisect_right(owners, (number, _END, 0)) - 1
        if at >= 0 and owners[at][1] >= number:
            drawn[owners[at][2]].points.append(number)


@dataclass(frozen=True, slots=True)
class Gap:
    """Checkpoints between two points of a strand, by number; both ends included."""

    strand: int
    spans: tuple[tuple[int, int], ...]

    @property
    def first(self) -> int:
        """The lowest number in the gap."""
        return self.spans[0][0]

    @property
    def numbers(self) -> int:
        """The count of numbers in the gap, an upper bound of its checkpoints."""
        return sum(last - first + 1 for first, last in self.spans)


def gaps(drawn: Sequence[Strand]) -> list[Gap]:
    """The gaps between the points of each strand, and before the first point."""
    between_points = []
    for strand in drawn:
        after = 0
        for point in strand.points:
            between = [
                (max(first, after + 1), min(last, point - 1))
                for first, last in strand.spans
                if max(first, after + 1) <= min(last, point - 1)
            ]
            if between:
                between_points.append(Gap(strand.index, tuple(between)))
            after = point
    return between_points


# The drawing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """An item with a row of its own; rows are in the order of ``at``."""

    kind: str  # start, point, gap, restored, fork, cut
    strand: int  # A fork is a strand of its own.
    at: tuple[int, int]
    number: int = 0  # Of a point; a gap's first; of a fork; of the restored attempt; of rows cut.


@dataclass(frozen=True, slots=True)
class Rail:
    """A vertical line through a row: its column, and whether it reaches the top and the bottom."""

    column: int
    is_live: bool
    from_top: bool
    to_bottom: bool
    is_gap: bool = False  # Drawn in dots: checkpoints are left out.
    is_fork: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A branch: from a row's own point to the column in which the branch goes on below."""

    column: int
    is_fork: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the drawing."""

    entry: Entry
    column: int
    is_live: bool
    rails: tuple[Rail, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A tree in rows, from the beginning down to now."""

    rows: tuple[Row, ...]
    columns: int
    hidden: int  # Strands and forks without a free column.


@dataclass(slots=True)
class _Reach:
    """The rows of one strand."""

    strand: int
    begins: int  # The row of its base, or its own first.
    first: int  # Its own first row.
    last: int
    is_live: bool
    is_fork: bool
    has_base: bool


def newest(entries: Iterable[Entry], at_most: int) -> list[Entry]:
    """The last ``at_most`` rows in their order, under one with the number of rows cut off.

    Gaps do not count as rows cut off.
    """
    ordered = sorted(entries, key=_place)
    cut = [entry for entry in ordered[:-at_most] if entry.kind != "gap"]
    if not cut:
        return ordered
    return [Entry("cut", 0, (-1, 0), len(cut)), *ordered[-at_most:]]


def _place(entry: Entry) -> tuple[int, int, int]:
    return *entry.at, entry.strand


def draw(
    drawn: Sequence[Strand], entries: Iterable[Entry], forks: Mapping[int, int | None]
) -> Drawing:
    """Lay out the tree.

    Args:
        entries: In any order; forks by the strand's index, beyond those of the strands.
        forks: The checkpoint that each fork began with, by its strand's index; None: not drawn.
    """
    ordered = sorted(entries, key=_place)
    reaches = _reaches(drawn, ordered, forks)
    columns = _columns(reaches)
    hidden = {reach.strand for reach in reaches if reach.strand not in columns}
    rows = []
    for at, entry in enumerate(ordered):
        if entry.strand in hidden:
            continue
        own = next(reach for reach in reaches if reach.strand == entry.strand)
        rows.append(
            Row(
                entry,
                columns[entry.strand],
                own.is_live,
                tuple(_rails(reaches, columns, at, entry)),
                tuple(
                    Turn(columns[reach.strand], reach.is_fork)
                    for reach in reaches
                    if reach.strand in columns and reach.has_base and reach.begins == at
                ),
            )
        )
    return Drawing(tuple(rows), max(columns.values(), default=0) + 1, len(hidden))


def _reaches(
    drawn: Sequence[Strand], ordered: Sequence[Entry], forks: Mapping[int, int | None]
) -> list[_Reach]:
    row_of = {entry.number: at for at, entry in enumerate(ordered) if entry.kind == "point"}
    rows: dict[int, list[int]] = {}
    for at, entry in enumerate(ordered):
        rows.setdefault(entry.strand, []).append(at)
    reaches = []
    for strand, own in rows.items():
        is_fork = strand >= len(drawn)
        base = forks.get(strand) if is_fork else None
        if not is_fork and drawn[strand].parent is not None:
            base = drawn[strand].base
        begins = own[0] if base is None else row_of.get(base, own[0])
        is_live = not is_fork and drawn[strand].is_live
        reaches.append(_Reach(strand, begins, own[0], own[-1], is_live, is_fork, begins != own[0]))
    return reaches


def _columns(reaches: Sequence[_Reach]) -> dict[int, int]:
    """A column for each strand such that no two share one in a row; the line has the first."""
    columns: dict[int, int] = {}
    taken: dict[int, list[_Reach]] = {}
    for reach in sorted(reaches, key=lambda r: (not r.is_live, r.begins, r.last - r.begins)):
        first = 0 if reach.is_live else 1
        for column in range(first, COLUMNS_MAX):
            others = taken.setdefault(column, [])
            if all(o.last < reach.begins or reach.last < o.begins for o in others):
                others.append(reach)
                columns[reach.strand] = column
                break
    return columns


def _rails(
    reaches: Sequence[_Reach], columns: Mapping[int, int], at: int, entry: Entry
) -> Iterable[Rail]:
    for reach in reaches:
        column = columns.get(reach.strand)
        if column is None or not reach.begins <= at <= reach.last:
            continue
        if at == reach.begins and reach.has_base:
            continue  # The branch turns off from its base here.
        is_own = reach.strand == entry.strand
        from_top = at > reach.begins
        to_bottom = at < reach.last
        if from_top or to_bottom:
            is_gap = is_own and entry.kind in ("gap", "cut")
            yield Rail(column, reach.is_live, from_top, to_bottom, is_gap, reach.is_fork)
