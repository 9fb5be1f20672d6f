"""Buckets of weights, and the checksum by which engines acknowledge them."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.types import Weights
from longshore_runtime.weights.buckets import Receipt, buckets, checksums, combined_checksum

WEIGHTS: Weights = {"a": np.array([[1.0, 2.0]], dtype=np.float32), "b": np.array([3.0], dtype=np.float32)}
SIZES = st.lists(st.integers(0, 40), max_size=20)


def named(sizes: list[int]) -> list[tuple[str, npt.NDArray[np.float32]]]:
    """Parameters with so many values."""
    return [(f"p{index}", np.full(size, index, dtype=np.float32)) for index, size in enumerate(sizes)]


def num_bytes(bucket: Weights) -> int:
    """Of all its values."""
    return sum(values.nbytes for values in bucket.values())


@given(SIZES, st.integers(1, 400))
def test_buckets_hold_every_parameter_once_and_in_order(sizes: list[int], max_bytes: int) -> None:
    gathered = [pair for bucket in buckets(named(sizes), max_bytes) for pair in bucket.items()]
    assert [name for name, _ in gathered] == [name for name, _ in named(sizes)]
    assert all(np.array_equal(values, wanted) for (_, values), (_, wanted) in zip(gathered, named(sizes), strict=True))


@given(SIZES, st.integers(1, 400))
def test_no_bucket_is_too_large_unless_a_parameter_alone_is_and_none_is_empty(sizes: list[int], max_bytes: int) -> None:
    for bucket in buckets(named(sizes), max_bytes):
        assert len(bucket) == 1 or num_bytes(bucket) <= max_bytes
        assert bucket


@given(SIZES, st.integers(1, 400))
def test_neighbouring_buckets_would_not_fit_into_one(sizes: list[int], max_bytes: int) -> None:
    gathered = list(buckets(named(sizes), max_bytes))
    for one, other in itertools.pairwise(gathered):
        assert num_bytes(one) + next(iter(other.values())).nbytes > max_bytes


def test_parameters_are_asked_for_when_their_bucket_is() -> None:
    parameters = iter(named([10, 10, 10, 10]))
    next(buckets(parameters, max_bytes=40))
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


def test_the_combined_checksum_tells_the_parameters_and_not_how_they_came() -> None:
    one, other = ({"a": "1"}, {"b": "2"})
    assert combined_checksum([one, other]) == combined_checksum([other, one]) == combined_checksum([one | other])
    others = [[one], [{"a": "2"}, {"b": "1"}], [{"a": "2"}, other], []]
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


def test_a_receipt_tells_what_trainer_and_engine_compare() -> None:
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


def test_an_optional_parameter_may_come_and_may_be_missing() -> None:
    taken(WEIGHTS, expected=["a"], optional=["b"]).complete()
    taken(WEIGHTS, expected=["a", "b", "c"], optional=["c"]).complete()


def taken(bucket: Weights, expected: list[str], optional: tuple[str, ...] | list[str] = ()) -> Receipt:
    """A receipt for one bucket."""
    receipt = Receipt(expected, optional)
    receipt.take(checksums(bucket))
    return receipt
