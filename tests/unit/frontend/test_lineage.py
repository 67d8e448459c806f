"""The lineage of checkpoints and attempts, as lanes, strands and rows of a drawing."""

from hypothesis import given
from hypothesis import strategies as st

from frontend.savepoints.tree import (
    COLUMNS_MAX,
    Drawing,
    Entry,
    Gap,
    Restored,
    Strand,
    Taken,
    draw,
    gaps,
    lanes,
    newest,
    place,
    strands,
)
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.lineage import NO_END, AttemptBase, lineage_of

# weir.protocol.lineage's own example.
BACK_AND_ON = (
    [Restored(1, None), Restored(2, 4), Restored(3, 6)],
    [Taken(1, 1, 6, 6), Taken(2, 7, 8, 8), Taken(3, 9, 9, 9)],
)
BACK = (BACK_AND_ON[0][:2], BACK_AND_ON[1][:2])


def spans(drawn: list[Strand]) -> list[list[tuple[int, int]]]:
    return [strand.spans for strand in drawn]


def test_a_job_that_has_taken_nothing_has_no_strand() -> None:
    assert strands(lanes([], [])) == []
    (line,) = strands(lanes([Restored(1, None)], []))
    assert (line.is_live, line.spans, line.newest) == (True, [], None)


def test_recoveries_from_the_newest_checkpoint_continue_one_line() -> None:
    (line,) = strands(
        lanes(
            [Restored(1, None), Restored(2, 5), Restored(3, 9)],
            [Taken(1, 1, 6, 5), Taken(2, 7, 9, 9), Taken(3, 10, 12, 12)],
        )
    )
    assert line.spans == [(1, 12)]
    assert line.newest == 12


def test_what_was_gone_back_behind_branches_off_the_line() -> None:
    line, rest = strands(lanes(*BACK))
    assert line.spans == [(1, 4), (7, 8)]
    assert (rest.is_live, rest.parent, rest.base, rest.spans) == (False, 0, 4, [(5, 6)])


def test_going_forward_again_makes_the_other_branch_the_one_left_behind() -> None:
    line, rest = strands(lanes(*BACK_AND_ON))
    assert line.spans == [(1, 6), (9, 9)]
    assert (rest.base, rest.spans) == (4, [(7, 8)])


def test_a_rollback_that_has_taken_nothing_yet_ends_the_line_at_its_base() -> None:
    line, *rest = strands(lanes([*BACK[0], Restored(3, 2)], BACK[1]))
    assert line.spans == [(1, 2)]
    assert [(one.base, one.spans) for one in rest] == [(2, [(3, 6)]), (4, [(7, 8)])]
    assert rest[1].parent == rest[0].index


def test_attempts_that_came_to_nothing_are_no_branches() -> None:
    attempts = [Restored(1, None), Restored(2, 4), Restored(3, 4), Restored(4, 4)]
    branches = strands(lanes(attempts, [Taken(1, 1, 6, 6), Taken(4, 7, 8, 8)]))
    assert spans(branches) == [[(1, 4), (7, 8)], [(5, 6)]]


def test_an_attempt_that_has_not_begun_yet_is_where_the_one_before_is() -> None:
    branches = strands(lanes([*BACK[0], Restored(3, None)], BACK[1]))
    assert spans(branches) == spans(strands(lanes(*BACK)))


def test_branches_of_branches_hang_where_they_began() -> None:
    attempts = [Restored(1, None), Restored(2, 3), Restored(3, 7), Restored(4, 2)]
    taken = [Taken(1, 1, 5, 5), Taken(2, 6, 9, 9), Taken(3, 10, 12, 12), Taken(4, 13, 13, 13)]
    branches = strands(lanes(attempts, taken))
    assert branches[0].spans == [(1, 2), (13, 13)]
    by_span = {strand.spans[0]: strand for strand in branches[1:]}
    rest = by_span[(3, 5)]
    assert (rest.base, rest.parent) == (2, 0)
    first = by_span[(6, 9)]
    assert (first.base, first.parent) == (3, rest.index)
    second = by_span[(10, 12)]
    assert (second.base, second.parent) == (7, first.index)


def test_a_fork_begins_with_a_checkpoint_that_is_not_its_own() -> None:
    (line,) = strands(lanes([Restored(1, 40), Restored(2, 43)], [Taken(1, 41, 44, 43)]))
    assert (line.base, line.parent, line.spans) == (40, None, [(41, 44)])


def test_checkpoints_of_unknown_attempts_are_on_the_line() -> None:
    (line,) = strands(lanes([Restored(7, 60)], [Taken(2, 1, 60, 60), Taken(7, 61, 70, 70)]))
    assert line.spans == [(1, 70)]


def test_a_savepoint_beside_the_line_is_no_branch_until_something_goes_on_from_it() -> None:
    taken = [Taken(1, 1, 6, 5), Taken(2, 7, 9, 9)]  # 6 is a savepoint.
    assert len(strands(lanes([Restored(1, None), Restored(2, 5)], taken))) == 1
    line, rest = strands(lanes([Restored(1, None), Restored(2, 5), Restored(3, 6)], taken))
    assert (line.newest, rest.base, rest.spans) == (6, 6, [(7, 9)])


def placed(*numbers: int) -> list[Strand]:
    drawn = strands(lanes(*BACK))
    place(drawn, numbers)
    return drawn


def test_points_are_what_matters_and_the_rest_is_counted_between_them() -> None:
    line, rest = placed(2)
    assert (line.points, rest.points) == ([2, 4, 8], [6])
    assert gaps([line, rest]) == [
        Gap(0, ((1, 1),)),
        Gap(0, ((3, 3),)),
        Gap(0, ((7, 7),)),
        Gap(1, ((5, 5),)),
    ]


def test_numbers_that_no_checkpoint_has_are_no_points() -> None:
    line, rest = placed(0, 9, 1_000)
    assert (line.points, rest.points) == ([4, 8], [6])


def test_a_gap_across_attempts_leaves_out_what_is_on_other_strands() -> None:
    drawn = strands(
        lanes(
            [Restored(1, None), Restored(2, 5), Restored(3, 8), Restored(4, 3)],
            [Taken(1, 1, 6, 5), Taken(2, 7, 8, 8), Taken(3, 9, 10, 10), Taken(4, 11, 12, 12)],
        )
    )
    place(drawn, ())
    (rest,) = [gap for gap in gaps(drawn) if gap.strand == 1]
    assert rest.spans == ((4, 9),)


# Against the protocol's own lines ---------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Restored], list[Taken]]:
    """Attempts that go on from any checkpoint that was ever taken, and take a few of their own."""
    restored, taken, first = [], [], 1
    for attempt in range(1, draw(st.integers(1, 9)) + 1):
        base = draw(st.integers(1, first - 1)) if first > 1 else None
        if first > 1 and draw(st.booleans()):
            base = first - 1  # Failures go on from the newest.
        restored.append(Restored(attempt, base))
        if count := draw(st.integers(0, 4)):
            last = first + count - 1
            taken.append(Taken(attempt, first, last, last))
            first = last + 1
    return restored, taken


@given(histories())
def test_the_line_is_the_one_that_a_restore_would_follow(
    history: tuple[list[Restored], list[Taken]],
) -> None:
    restored, taken = history
    by_attempt = {one.attempt: one for one in taken}
    of = {n: one.attempt for one in taken for n in range(one.first, one.last + 1)}
    next_id, bases = 1, {}
    for one in restored:
        base = one.checkpoint
        bases[AttemptNumber(one.attempt)] = AttemptBase(
            AttemptNumber(one.attempt),
            CheckpointId(next_id),
            None if base is None else CheckpointId(base),
            None if base is None else AttemptNumber(of[base]),
        )
        if one.attempt in by_attempt:
            next_id = by_attempt[one.attempt].last + 1
    expected = lineage_of(AttemptNumber(restored[-1].attempt), NO_END, bases)
    drawn = strands(lanes(restored, taken))
    on = {n: s.index for s in drawn for first, last in s.spans for n in range(first, last + 1)}
    assert on.keys() == of.keys()  # Each checkpoint is on a strand,
    assert sum(last - first + 1 for s in drawn for first, last in s.spans) == len(of)  # and on one.
    assert {n for n, index in on.items() if index == 0} == {n for n in of if n in expected}
    place(drawn, ())
    for strand in drawn[1:]:
        assert strand.parent is None or on[strand.base or 0] == strand.parent
    counted = {
        n for gap in gaps(drawn) for first, last in gap.spans for n in range(first, last + 1)
    }
    assert counted | {n for s in drawn for n in s.points} == of.keys()


# The drawing --------------------------------------------------------------------------------------


def test_of_many_rows_the_newest_are_drawn_below_one_that_counts_the_others() -> None:
    every = [Entry("point", 0, (n, 0), n) for n in range(1, 10)]
    every += [Entry("gap", 0, (n, -1), n) for n in range(1, 10)]
    entries = newest(reversed(every), 4)
    assert [(e.kind, e.number) for e in entries] == [
        ("cut", 7),
        ("gap", 8),
        ("point", 8),
        ("gap", 9),
        ("point", 9),
    ]
    assert newest(every, 18) == newest(every, 99) == sorted(every, key=lambda e: e.at)


def test_the_line_comes_from_what_is_not_drawn() -> None:
    line, rest = strands(lanes(*BACK))
    place([line, rest], (2, 5))
    points = [Entry("point", s.index, (n, 0), n) for s in (line, rest) for n in s.points]
    drawing = draw([line, rest], newest(points, 3), {})
    assert [(row.entry.kind, row.entry.number, row.column) for row in drawing.rows] == [
        ("cut", 2, 0),
        ("point", 5, 1),
        ("point", 6, 1),
        ("point", 8, 0),
    ]
    first = drawing.rows[0].rails[0]
    assert (first.is_gap, first.from_top, first.to_bottom) == (True, False, True)


def drawing(drawn: list[Strand], forks: dict[int, int | None] | None = None) -> Drawing:
    entries = [Entry("point", s.index, (n, 0), n) for s in drawn for n in s.points]
    for index, base in (forks or {}).items():
        entries.append(Entry("fork", index, (base or 10**9, 1), index))
    return draw(drawn, entries, forks or {})


def test_the_line_is_straight_and_branches_turn_off_at_their_base() -> None:
    picture = drawing(placed(2))
    assert [(row.entry.number, row.column) for row in picture.rows] == [
        (2, 0), (4, 0), (6, 1), (8, 0)
    ]  # fmt: skip
    assert [len(row.turns) for row in picture.rows] == [0, 1, 0, 0]
    assert picture.columns == 2
    top, base, left, newest = ([(r.column, r.from_top, r.to_bottom) for r in row.rails]
                               for row in picture.rows)  # fmt: skip
    assert top == [(0, False, True)]
    assert base == [(0, True, True)]  # The branch begins with its turn.
    assert left == [(0, True, True), (1, True, False)]
    assert newest == [(0, True, False)]


def test_a_fork_hangs_below_what_it_began_with() -> None:
    picture = drawing(placed(2), {2: 2, 3: None})
    fork = next(row for row in picture.rows if row.entry.number == 2 and row.entry.kind == "fork")
    assert (fork.column, fork.is_live) == (1, False)
    assert [turn.is_fork for turn in picture.rows[0].turns] == [True]
    unknown = next(row for row in picture.rows if row.entry.kind == "fork" and row is not fork)
    assert unknown.rails == ()


def test_no_two_strands_share_a_column_in_a_row() -> None:
    attempts, taken, first = [Restored(1, None)], [Taken(1, 1, 40, 40)], 41
    for attempt in range(2, 30):
        attempts.append(Restored(attempt, attempt % 5 + 1))
        taken.append(Taken(attempt, first, first + 3, first + 3))
        first += 4
    drawn = strands(lanes(attempts, taken))
    place(drawn, range(1, first, 3))
    picture = drawing(drawn)
    assert picture.columns <= COLUMNS_MAX
    assert picture.hidden > 0
    shown = {row.entry.strand for row in picture.rows}
    assert len(shown) + picture.hidden == len([s for s in drawn if s.points])
    for row in picture.rows:
        columns = [rail.column for rail in row.rails] + [turn.column for turn in row.turns]
        assert len(columns) == len(set(columns))
        assert row.column in columns or not row.rails
