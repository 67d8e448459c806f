"""The tree of a job's checkpoints for its page: rows of text, each with a piece of SVG."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice

from django.urls import reverse

from checkpoints.models import Checkpoint, Savepoint
from controlplane.base.formatting import number, plural, size
from frontend.base import status
from frontend.base.texts import headline
from frontend.savepoints import tree, tree_queries
from frontend.savepoints.tree import Drawing, Entry, Gap, Row, Strand
from jobs.models import Attempt, Job
from jobs.redaction import without_credentials
from weir.protocol.lifecycle import CheckpointStatus

ROWS_MAX = 120  # Older rows are only counted.
COUNTED_MAX = 10_000  # Numbers in gaps that are counted exactly; larger gaps get an upper bound.

# Units: pixels. A row grows with its text: lines go on to 100 %.
COLUMN = 22
DOT_Y = 20
TURN = 20  # From a point down to the place where its branch reaches its own column.


@dataclass(frozen=True, slots=True)
class Line:
    """A vertical line; ``y`` in pixels or per cent, as SVG takes them."""

    x: int
    y1: str
    y2: str
    kind: str  # live, left, fork, with gap: classes of the style sheet.


@dataclass(frozen=True, slots=True)
class Curve:
    """From a point to the column of a branch."""

    d: str
    x: int
    y: str  # The top of the branch's line.
    kind: str


@dataclass(frozen=True, slots=True)
class Item:
    """One row: its drawing and its text."""

    kind: str
    x: int
    lines: list[Line]
    curves: list[Curve]
    dot: str = ""  # Its class; empty: none.
    text: str = ""
    url: str = ""
    tags: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # Of savepoints.
    more: str = ""
    at: object = None  # A point in time.
    state: dict[str, str] | None = None  # A pill.
    links: list[tuple[str, str]] = field(default_factory=list)  # For users who may act.


@dataclass(frozen=True, slots=True)
class Tree:
    """All rows, from the beginning down to now."""

    items: list[Item]
    width: int  # Of the drawing.
    hidden: str = ""  # A sentence on branches and forks that are not drawn.
    dot_y: int = DOT_Y


@dataclass(frozen=True, slots=True)
class _Known:
    """The data behind the rows."""

    job: Job
    drawn: Sequence[Strand]
    checkpoints: Mapping[int, Checkpoint]
    savepoints: Mapping[int, Savepoint]
    forks: Mapping[int, tree_queries.Fork]  # By strand.
    gaps: Mapping[tuple[int, int], Gap]  # By strand and first number.
    counts: Mapping[Gap, int]  # Of the gaps that are small enough to be counted.
    attempts: Mapping[int, Attempt]
    next_number: int | None  # The checkpoint that the job restores next.

    def gap(self, entry: Entry) -> Gap:
        """The gap of an entry."""
        return self.gaps[entry.strand, entry.number]

    def is_any(self, entry: Entry) -> bool:
        """Whether an entry is not empty: in a gap, no checkpoint may have completed."""
        return entry.kind != "gap" or self.counts.get(self.gap(entry)) != 0


def build_tree(job: Job) -> Tree | None:
    """The job's tree; None before its first attempt."""
    lanes = tree.lanes(tree_queries.restored(job), tree_queries.taken(job))
    drawn = tree.strands(lanes)
    if not drawn:
        return None
    savepoints = {
        row.checkpoint.number: row for row in tree_queries.savepoints(job) if row.checkpoint
    }
    forks = {len(drawn) + at: fork for at, fork in enumerate(reversed(tree_queries.forks(job)))}
    next_number = job.restore_number if job.restore_job_id == job.pk else None
    wanted = {*savepoints, *(fork.checkpoint for fork in forks.values()), next_number} - {None}
    tree.place(drawn, (which for which in wanted if which is not None))
    gaps = {(gap.strand, gap.first): gap for gap in tree.gaps(drawn)}
    entries = tree.newest(_entries(drawn, lanes, gaps, forks), ROWS_MAX)
    firsts = {attempt for _, attempt in _of(entries, "restored")}
    known = _Known(
        job=job,
        drawn=drawn,
        checkpoints=tree_queries.checkpoints(job, (n for _, n in _of(entries, "point"))),
        savepoints=savepoints,
        forks=forks,
        gaps=gaps,
        counts=_counted(job, [gaps[key] for key in _of(entries, "gap")]),
        attempts=tree_queries.attempts(
            job, {attempt for first in firsts for attempt in (first, first - 1)}
        ),
        next_number=next_number,
    )
    bases = {strand: fork.checkpoint for strand, fork in forks.items()}
    drawing = tree.draw(drawn, (entry for entry in entries if known.is_any(entry)), bases)
    return Tree(
        [_item(row, known) for row in drawing.rows],
        drawing.columns * COLUMN + 6,
        _hidden(job, drawing, len(forks)),
    )


_LAST = 2**62


def _entries(
    drawn: Sequence[Strand],
    lanes: Sequence[tree.Lane],
    gaps: Iterable[tuple[int, int]],
    forks: Mapping[int, tree_queries.Fork],
) -> list[Entry]:
    return [
        *_starts(drawn),
        *_points(drawn),
        *(Entry("gap", strand, (first, -1), first) for strand, first in gaps),
        *_restored(drawn, lanes),
        *(
            Entry("fork", strand, (fork.checkpoint or _LAST, 1), strand)
            for strand, fork in forks.items()
        ),
    ]


def _of(entries: Iterable[Entry], kind: str) -> set[tuple[int, int]]:
    """Strand and number of the entries of a kind."""
    return {(entry.strand, entry.number) for entry in entries if entry.kind == kind}


def _starts(drawn: Sequence[Strand]) -> list[Entry]:
    roots = [strand for strand in drawn if strand.parent is None]
    return [
        Entry("start", strand.index, (min((s[0] for s in strand.spans), default=0), -2))
        for strand in roots
    ]


def _points(drawn: Sequence[Strand]) -> list[Entry]:
    return [
        Entry("point", strand.index, (point, 0), point)
        for strand in drawn
        for point in strand.points
    ]


def _restored(drawn: Sequence[Strand], lanes: Sequence[tree.Lane]) -> list[Entry]:
    """A row for each lane that began by going back to an earlier checkpoint."""
    entries = []
    for strand in drawn:
        for lane, after, _ in strand.pieces:
            if lane.parent is None or after > 0:
                continue
            at = lane.spans[0][0] if lane.spans else _LAST
            entries.append(Entry("restored", strand.index, (at, -2), lane.attempts[0]))
    return entries


def _counted(job: Job, gaps: Iterable[Gap]) -> dict[Gap, int]:
    """The checkpoints in the smallest of these gaps, up to ``COUNTED_MAX`` numbers in total."""
    ordered = sorted(gaps, key=lambda gap: gap.numbers)
    until = bisect_right(list(accumulate(gap.numbers for gap in ordered)), COUNTED_MAX)
    small = ordered[:until]
    counts = iter(tree_queries.count_in(job, [span for gap in small for span in gap.spans]))
    return {gap: sum(islice(counts, len(gap.spans))) for gap in small}


def _hidden(job: Job, drawing: Drawing, forks: int) -> str:
    said = []
    if drawing.hidden:
        said.append(f"{plural(drawing.hidden, 'branch', 'branches')} not drawn")
    if forks == tree_queries.FORKS_MAX:
        more = tree_queries.fork_count(job) - forks
        said += [f"{plural(more, 'older fork')} not drawn"] if more > 0 else []
    return f"{' and '.join(said)}." if said else ""


# Rows ---------------------------------------------------------------------------------------------


def _item(row: Row, known: _Known) -> Item:
    x = _x(row.column)
    lines = [_line(rail) for rail in row.rails]
    curves = [_curve(x, turn.column, is_fork=turn.is_fork) for turn in row.turns]
    drawn = (row.entry.kind, x, lines, curves)
    match row.entry.kind:
        case "start":
            return _start(row, known, drawn)
        case "gap":
            return _gap(known.gap(row.entry), known, drawn)
        case "cut":
            text = f"{plural(row.entry.number, 'earlier row')} not drawn"
            return Item(*drawn, text=text, more="All savepoints are in the list.")
        case "restored":
            return _went_back(row, known, drawn)
        case "fork":
            return _fork(row, known, drawn)
    return _point(row, known, drawn)


_Drawn = tuple[str, int, list[Line], list[Curve]]


def _x(column: int) -> int:
    return column * COLUMN + COLUMN // 2


def _line(rail: tree.Rail) -> Line:
    kind = "fork" if rail.is_fork else "live" if rail.is_live else "left"
    if rail.is_gap:
        kind += " gap"
    y1 = "0" if rail.from_top else str(DOT_Y)
    return Line(_x(rail.column), y1, "100%" if rail.to_bottom else str(DOT_Y), kind)


def _curve(x: int, column: int, *, is_fork: bool) -> Curve:
    to = _x(column)
    middle = DOT_Y + TURN // 2
    path = f"M{x} {DOT_Y}C{x} {middle} {to} {middle} {to} {DOT_Y + TURN}"
    return Curve(path, to, str(DOT_Y + TURN), "fork" if is_fork else "left")


def _start(row: Row, known: _Known, drawn: _Drawn) -> Item:
    job, strand = known.job, known.drawn[row.entry.strand]
    if strand.base is None:
        return Item(*drawn, dot="start", text="The beginning: empty state")
    if job.origin_id is None:
        where = without_credentials(job.origin_uri) or "unknown location"
        text = f"Checkpoint {number(strand.base)} of another job"
        return Item(*drawn, dot="start", text=text, more=where)
    return Item(
        *drawn,
        dot="start",
        text=f"Checkpoint {number(strand.base)} of {job.origin_id}",
        url=reverse("job-savepoints", args=[job.origin_id]),
        tags=["forked from"],
        more=without_credentials(job.origin_uri),
    )


def _gap(gap: Gap, known: _Known, drawn: _Drawn) -> Item:
    count = known.counts.get(gap)
    if count is not None:
        return Item(*drawn, text=plural(count, "more checkpoint"))
    most = plural(gap.numbers, "more checkpoint")
    return Item(*drawn, text=f"Up to {most}, failed ones included")


def _went_back(row: Row, known: _Known, drawn: _Drawn) -> Item:
    first = row.entry.number
    before, own = known.attempts.get(first - 1), known.attempts.get(first)
    base = None if own is None else own.restored_checkpoint
    cause = headline(before.cause) if before is not None else ""
    what = "went back" if base is None else f"restored checkpoint {number(base)}"
    return Item(
        *drawn,
        dot="restored" if row.is_live else "restored left",
        text=f"Attempt {number(first)} {what}",
        url=f"{reverse('job-recovery', args=[known.job.pk])}?attempt={first}#attempt-{first}",
        more=cause,
        at=None if own is None else own.started_at,
    )


def _fork(row: Row, known: _Known, drawn: _Drawn) -> Item:
    fork = known.forks[row.entry.strand]
    leaf = fork.uri.rstrip("/").rpartition("/")[2]
    return Item(
        *drawn,
        dot="fork",
        text=fork.name,
        url=reverse("job-savepoints", args=[fork.id]),
        tags=["fork"],
        more=f"{fork.id}, restored from {leaf}" if leaf else fork.id,
        at=fork.created_at,
        state=status.of_job(fork.status),
    )


def _point(row: Row, known: _Known, drawn: _Drawn) -> Item:
    which, strand = row.entry.number, known.drawn[row.entry.strand]
    checkpoint, savepoint = known.checkpoints.get(which), known.savepoints.get(which)
    tags = []
    if which == known.drawn[0].newest and strand.is_live:
        tags.append("newest")
    if which == known.next_number:
        tags.append("restored next")
    if not strand.is_live:
        tags.append("left behind")
    is_kept = (
        checkpoint is not None
        and checkpoint.status == CheckpointStatus.COMPLETED
        and checkpoint.discard_due_at is None
        and (savepoint is None or savepoint.deleted_at is None)
    )
    kind = "savepoint" if savepoint is not None else "point"
    return Item(
        *drawn,
        dot=f"{kind}{'' if strand.is_live else ' left'}{'' if is_kept else ' gone'}",
        text=f"Checkpoint {number(which)}",
        url=reverse("checkpoint-page", args=[known.job.pk, which]) if checkpoint else "",
        tags=tags,
        names=[] if savepoint is None else [savepoint.name],
        more=_facts(checkpoint, is_kept=is_kept),
        at=None if checkpoint is None else checkpoint.triggered_at,
        links=_links(known.job, which, savepoint) if is_kept else [],
    )


def _facts(checkpoint: Checkpoint | None, *, is_kept: bool) -> str:
    if checkpoint is None:
        return ""
    if is_kept:
        return size(checkpoint.state_bytes)
    return "no longer kept" if checkpoint.discarded_at is None else "files deleted"


def _links(job: Job, which: int, savepoint: Savepoint | None) -> list[tuple[str, str]]:
    target = f"?checkpoint={which}" if savepoint is None else f"?savepoint={savepoint.pk}"
    return [
        (words, reverse(f"job-{name}", args=[job.pk]) + target)
        for name, words in (("rollback", "Roll back here"), ("fork", "Fork"))
    ]
