"""The index of integers: numbers in order of first occurrence, in each form of its places."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.state.columns.integer_index import IntegerIndex

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


def numbered(index: IntegerIndex, known: dict[int, int], keys: npt.NDArray[np.int64]) -> None:
    """Add keys, and hold their numbers and the stored keys against a dictionary."""
    wanted = [known.setdefault(key, len(known)) for key in keys.tolist()]
    assert index.add(keys).tolist() == wanted
    assert index.stored().to_pylist() == list(known)
    assert len(index) == len(known)


def spans() -> st.SearchStrategy[npt.NDArray[np.int64]]:
    """Keys of one slice: a random sample of a stretch of integers, or of multiples of a number."""

    def sample(first: int, count: int, step: int, rows: int, seed: int) -> npt.NDArray[np.int64]:
        picked = np.random.default_rng(seed).integers(0, count, rows) * step
        return first + picked if first < 0 else first - picked

    return st.builds(
        sample,
        st.sampled_from([0, 1, 1000, -1000, LOWEST, LOWEST + 3, HIGHEST, 1 << 40]),
        st.integers(1, 4_000),
        st.sampled_from([1, 1, 1, 2, 9, 1 << 20, 1 << 33, 1 << 50]),
        st.integers(0, 3_000),
        st.integers(0, 99),
    )


@given(st.lists(spans(), max_size=6))
def test_keys_are_numbered_in_the_order_of_their_first_occurrence(
    slices: list[npt.NDArray[np.int64]],
) -> None:
    index, known = IntegerIndex(), dict[int, int]()
    for keys in slices:
        numbered(index, known, keys)


@pytest.mark.parametrize("step", [1_000, -1_000])
@pytest.mark.parametrize("first", [0, LOWEST + 50_000, HIGHEST - 50_000])
def test_ids_that_are_counted_on_stay_direct(first: int, step: int) -> None:
    index, known = IntegerIndex(), dict[int, int]()
    forms = []
    for i in range(40):
        numbered(index, known, np.arange(first + i * step, first + i * step + 1_000))
        forms.append(index.is_direct)
    assert forms[-1]
    assert forms == sorted(forms)


@pytest.mark.parametrize("sign", [1, -1])
def test_each_id_just_beyond_the_last_one_gets_a_place(sign: int) -> None:
    index, known = IntegerIndex(), dict[int, int]()
    numbered(index, known, sign * np.arange(1_500))
    for key in range(1_500, 3_500):
        numbered(index, known, np.array([sign * key]))
    assert index.is_direct


@pytest.mark.parametrize("edge", [LOWEST, HIGHEST])
def test_the_keys_at_the_ends_of_64_bits_are_direct_as_well(edge: int) -> None:
    index, known = IntegerIndex(), dict[int, int]()
    inward = 1 if edge < 0 else -1
    for distance in range(9_000, -1, -1_000):
        numbered(index, known, edge + inward * np.arange(distance, distance + 1_000))
        assert index.is_direct


@pytest.mark.parametrize("outlier", [-1, 1 << 40, LOWEST, HIGHEST])
def test_a_key_far_from_all_others_makes_the_index_hash(outlier: int) -> None:
    index, known = IntegerIndex(), dict[int, int]()
    dense = np.arange(10_000, 20_000)
    for part in np.split(dense, 10):
        numbered(index, known, part)
    assert index.is_direct
    numbered(index, known, np.array([12_000, outlier, 25_000]))
    assert index.is_direct == (outlier == -1)
    numbered(index, known, np.concatenate([dense[::-1], np.arange(30_000)]))


@pytest.mark.parametrize(("step", "is_direct"), [(4, True), (20, False)])
def test_ids_of_which_other_subtasks_have_most_are_hashed(step: int, is_direct: bool) -> None:
    index, known = IntegerIndex(), dict[int, int]()
    for part in np.split(np.random.default_rng(7).permutation(20_000) * step, 20):
        numbered(index, known, part)
    assert index.is_direct is is_direct


def test_keys_of_one_home_are_told_apart() -> None:
    """New and known keys that all hash to the same few places, in one slice and in several."""
    candidates = np.arange(1 << 21) << 20
    index = IntegerIndex()
    homes = index.homes(candidates)
    crowd = candidates[homes < 3]
    assert len(crowd) > 3_000, "they must lie far behind their homes"
    keys, known = crowd[:200], dict[int, int]()
    for part in (keys[:7], keys[5:90], keys[::-1], np.repeat(keys, 3)):
        numbered(index, known, part)
    assert not index.is_direct
    numbered(index, known, crowd)


def test_a_key_that_comes_to_an_empty_place_is_new() -> None:
    """The number of an empty place reads a key that was never there: zero."""
    index, known = IntegerIndex(), dict[int, int]()
    candidates = np.arange(1, 1 << 13) << 20
    at_home_of_zero = candidates[index.homes(candidates) == index.homes(np.array([0]))]
    numbered(index, known, at_home_of_zero[:1])
    numbered(index, known, np.array([0]))
    numbered(index, known, np.array([0, at_home_of_zero[0]]))


def test_the_stored_keys_of_a_view_never_change() -> None:
    index, known = IntegerIndex(), dict[int, int]()
    views = []
    for i in range(12):
        numbered(index, known, np.random.default_rng(i).integers(0, 1 << 62, 400))
        keys = index.stored()
        views.append((keys, keys.to_pylist()))
    assert len({keys.buffers()[1].address for keys, _ in views}) > 2, "it must have grown"
    for keys, before in views:
        assert keys.to_pylist() == before
