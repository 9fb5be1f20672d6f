"""The checksum by which engines acknowledge weights."""

import numpy as np
import pytest

from longshore_runtime.types import Weights
from longshore_runtime.weights import checksum, require_same_names

WEIGHTS: Weights = {"a": np.array([[1.0, 2.0]], dtype=np.float32), "b": np.array([3.0], dtype=np.float32)}


def test_the_order_of_the_parameters_does_not_matter() -> None:
    assert checksum(WEIGHTS) == checksum({name: WEIGHTS[name] for name in ["b", "a"]})


def test_the_memory_layout_does_not_matter() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert checksum({"a": values}) == checksum({"a": np.asfortranarray(values)})


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
    assert checksum(other) != checksum(WEIGHTS)


def test_missing_and_unknown_parameters_are_refused() -> None:
    require_same_names(["b", "a"], ["a", "b"])
    with pytest.raises(ValueError, match="lack 1 parameters of the model, first 'b'"):
        require_same_names(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="have 2 unknown parameters, first 'c'"):
        require_same_names(["a", "d", "c"], ["a"])
