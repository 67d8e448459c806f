"""Errors that come back at the same place: when no restart helps."""

from weir.protocol.repeated_errors import LASTING_MS, TIMES, RepeatedError, failed_at


def failures(*at_ms: int, places: str = "aaaaaa", completed: str = "000000") -> RepeatedError:
    repeated = None
    for now_ms, place, count in zip(at_ms, places, completed, strict=False):
        repeated = failed_at(repeated, place, int(count), now_ms)
    assert repeated is not None
    return repeated


def test_an_error_at_the_same_place_is_hopeless_after_so_many_times_and_so_long() -> None:
    assert (TIMES, LASTING_MS) == (3, 60_000)
    assert not failures(0).is_hopeless(10**9)
    assert not failures(0, LASTING_MS).is_hopeless(LASTING_MS)
    assert failures(0, 1, LASTING_MS).is_hopeless(LASTING_MS)
    assert not failures(5, 6, LASTING_MS + 4).is_hopeless(LASTING_MS + 4)
    assert failures(5, 6, 7, LASTING_MS + 5).is_hopeless(LASTING_MS + 5)


def test_another_place_begins_anew() -> None:
    changing = failures(0, 1, LASTING_MS, places="aab")
    assert (changing.count, changing.since_ms) == (1, LASTING_MS)
    assert failures(0, 1, LASTING_MS, places="aba").count == 1


def test_a_completed_checkpoint_begins_anew() -> None:
    later = failures(0, 1, LASTING_MS, completed="001")
    assert (later.count, later.since_ms) == (1, LASTING_MS)
    assert failures(0, 1, LASTING_MS, completed="777").count == 3
