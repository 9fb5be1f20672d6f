"""Buckets of weights, and the checksum by which engines acknowledge them."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.weights.buckets import Receipt, buckets, checksums, combined_checksum
from longshore_runtime.weights.slices import Bucket, Checksum, Slice, Weights, bucket_size, spans

WEIGHTS: Weights = {"a": np.array([[1.0, 2.0]], dtype=np.float32), "b": np.array([3.0], dtype=np.float32)}
SIZES = st.lists(st.integers(0, 40), max_size=20)
MAX_BYTES = st.integers(1, 25).map(lambda num_words: 16 * num_words)


def named(sizes: list[int]) -> list[tuple[str, npt.NDArray[np.float32]]]:
    """Parameters with so many values."""
    return [(f"p{index}", np.full(size, index, dtype=np.float32)) for index, size in enumerate(sizes)]


def num_bytes(bucket: Bucket) -> int:
    """Bytes of all its values."""
    return sum(values.nbytes for values in bucket.values())


def put_together(parts: list[Bucket]) -> dict[str, npt.NDArray[np.float32]]:
    """What the buckets bring; every value once, and in order."""
    whole: dict[str, npt.NDArray[np.float32]] = {}
    shapes = {}
    for name, values in (pair for part in parts for pair in part.items()):
        if not isinstance(values, Slice):
            assert name not in whole
            whole[name] = values
            continue
        before = whole.setdefault(name, np.empty(0, dtype=np.float32))
        assert values.start == before.size
        whole[name], shapes[name] = np.concatenate([before, values.values]), values.shape
    return {name: values.reshape(shapes.get(name, values.shape)) for name, values in whole.items()}


@given(SIZES, MAX_BYTES)
def test_buckets_hold_every_value_once_and_in_order(sizes: list[int], max_bytes: int) -> None:
    brought = put_together(list(buckets(named(sizes), max_bytes)))
    assert list(brought) == [name for name, _ in named(sizes)]
    assert all(np.array_equal(brought[name], values) for name, values in named(sizes))


@given(SIZES, st.integers(16, 400))
def test_no_bucket_is_too_large_and_none_is_empty(sizes: list[int], max_bytes: int) -> None:
    for bucket in buckets(named(sizes), max_bytes):
        assert num_bytes(bucket) <= max_bytes
        assert bucket


@given(SIZES, MAX_BYTES)
def test_only_parameters_that_are_larger_than_a_bucket_are_cut(sizes: list[int], max_bytes: int) -> None:
    values = [pair for bucket in buckets(named(sizes), max_bytes) for pair in bucket.items()]
    cut = {name for name, part in values if isinstance(part, Slice)}
    assert cut == {name for name, whole in named(sizes) if whole.nbytes > max_bytes}


@given(st.integers(0, 1_000), st.sampled_from([1, 2, 4, 8]), st.integers(0, 400))
def test_slices_begin_where_words_do_and_leave_nothing_out(num_values: int, value_bytes: int, max_bytes: int) -> None:
    places = spans(num_values, value_bytes, bucket_size(max_bytes))
    assert [start for start, _ in places] == [0, *(stop for _, stop in places[:-1])]
    assert places[-1][1] == num_values
    assert all((stop - start) * value_bytes <= max(16, max_bytes) for start, stop in places)
    assert all(start * value_bytes % 16 == 0 for start, _ in places)


@given(st.integers(1, 12), st.integers(1, 12), MAX_BYTES, st.integers(0, 2**32))
def test_a_parameter_has_the_checksum_that_its_slices_have_together(
    rows: int, columns: int, max_bytes: int, seed: int
) -> None:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    for whole in (values, values.T, values.astype(np.float16)):
        parts = [checksums(bucket) for bucket in buckets([("a", whole)], max_bytes)]
        assert combined_checksum(parts) == combined_checksum([checksums({"a": whole})])


@given(SIZES, MAX_BYTES)
def test_neighbouring_buckets_would_not_fit_into_one(sizes: list[int], max_bytes: int) -> None:
    gathered = list(buckets(named(sizes), max_bytes))
    for one, other in itertools.pairwise(gathered):
        assert num_bytes(one) + next(iter(other.values())).nbytes > max_bytes


def test_parameters_are_asked_for_when_their_bucket_is() -> None:
    parameters = iter(named([10, 10, 10, 10]))
    next(buckets(parameters, max_bytes=48))
    assert [name for name, _ in parameters] == ["p2", "p3"], "one more than fits shows that the bucket is full"


def test_the_order_of_the_parameters_does_not_matter() -> None:
    assert checksums(WEIGHTS) == checksums({name: WEIGHTS[name] for name in ["b", "a"]})


def test_the_memory_layout_does_not_matter() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert checksums({"a": values}) == checksums({"a": np.asfortranarray(values)})


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "b": np.array([np.nextafter(np.float32(3), np.float32(4))], dtype=np.float32)},
        {**WEIGHTS, "a": np.array([[1.0], [2.0]], dtype=np.float32)},
        {"a": WEIGHTS["b"], "b": WEIGHTS["a"]},
        {"a": WEIGHTS["a"]},
    ],
    ids=["value", "shape", "names", "missing"],
)
def test_any_difference_shows(other: Weights) -> None:
    assert checksums(other) != checksums(WEIGHTS)


def test_the_combined_checksum_depends_on_the_parameters_and_not_on_how_they_came() -> None:
    one, other = (checksums({name: WEIGHTS[name]}) for name in ("a", "b"))
    assert combined_checksum([one, other]) == combined_checksum([other, one]) == combined_checksum([one | other])
    others = [[one], [{"a": other["b"]}, {"b": one["a"]}], [{"a": other["b"]}, other], []]
    assert len({combined_checksum(parts) for parts in [[one, other], *others]}) == 5


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.data())
def test_one_other_value_shows_and_so_do_two_that_changed_places(values: list[float], data: st.DataObject) -> None:
    before = np.array(values, dtype=np.float32)
    place = data.draw(st.integers(0, len(values) - 1))
    other, swapped = before.copy(), before.copy()
    other.view(np.uint32)[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    swapped[[0, place]] = swapped[[place, 0]]
    assert checksums({"a": other}) != checksums({"a": before})
    assert (checksums({"a": swapped}) == checksums({"a": before})) == (swapped.tobytes() == before.tobytes())


def test_a_receipt_holds_what_trainer_and_engine_compare() -> None:
    receipt = Receipt(expected=["a", "b"])
    receipt.take(checksums({"a": WEIGHTS["a"]}))
    receipt.take(checksums({"b": WEIGHTS["b"]}))
    assert receipt.complete() == combined_checksum([checksums(WEIGHTS)])


def test_missing_unknown_and_repeated_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="lack 2 parameters of the model, first 'c'"):
        taken(WEIGHTS, expected=["a", "b", "d", "c"]).complete()
    with pytest.raises(ValueError, match="have 1 unknown parameters, first 'b'"):
        taken(WEIGHTS, expected=["a"])
    with pytest.raises(ValueError, match="have 1 parameters twice, first 'a'"):
        taken(WEIGHTS, expected=["a", "b"]).take(checksums({"a": WEIGHTS["a"]}))


LARGE = np.arange(12, dtype=np.float32).reshape(3, 4)


def slices(*places: tuple[int, int]) -> list[dict[str, Checksum]]:
    """Checksums of some of its values."""
    return [checksums({"a": Slice(LARGE.reshape(-1)[start:stop], (3, 4), start)}) for start, stop in places]


def received(*places: tuple[int, int]) -> Receipt:
    """A receipt for them."""
    receipt = Receipt(["a"])
    for bucket in slices(*places):
        receipt.take(bucket)
    return receipt


def test_a_receipt_for_slices_is_that_for_the_parameter() -> None:
    assert received((0, 4), (4, 8), (8, 12)).complete() == combined_checksum([checksums({"a": LARGE})])


@pytest.mark.parametrize("places", [[(0, 4), (0, 4)], [(0, 8), (4, 12)], [(0, 12), (0, 4)], [(0, 12), (0, 12)]])
def test_values_that_come_twice_are_refused(places: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="have 1 parameters twice, first 'a'"):
        received(*places)


@pytest.mark.parametrize("places", [[(4, 12)], [(0, 4), (8, 12)], [(0, 4), (4, 8)], [(0, 8)]])
def test_values_that_do_not_come_are_missed(places: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="lack values of 1 parameters, first 'a'"):
        received(*places).complete()


def test_slices_of_other_parameters_do_not_complete_one() -> None:
    receipt = received((0, 4))
    with pytest.raises(ValueError, match="do not follow upon each other"):
        receipt.take(checksums({"a": Slice(LARGE.reshape(-1)[4:12], (4, 3), 4)}))


def test_an_optional_parameter_may_come_and_may_be_missing() -> None:
    taken(WEIGHTS, expected=["a"], optional=["b"]).complete()
    taken(WEIGHTS, expected=["a", "b", "c"], optional=["c"]).complete()


def taken(bucket: Weights, expected: list[str], optional: tuple[str, ...] | list[str] = ()) -> Receipt:
    """A receipt for one bucket."""
    receipt = Receipt(expected, optional)
    receipt.take(checksums(bucket))
    return receipt
