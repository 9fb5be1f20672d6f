"""Accumulated gradients: wherever they wait, their sum is that of everything that was added."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longshore_runtime.backends.accumulation import Accumulation, norm, relative_difference

HOST = torch.device("cpu")


@dataclass
class TwoBuffers:
    """Gradients of three parameters in two buffers."""

    tensors: list[Tensor] = field(default_factory=list)

    @property
    def gradients(self) -> Iterator[Tensor]:
        first, second = self.tensors
        return iter((first[:2], first[2:], second))

    def place(self) -> None:
        assert not self.tensors, "they are there already"
        self.tensors = [torch.zeros(5), torch.zeros(3)]

    def release(self) -> None:
        self.tensors = []


def add(accumulation: Accumulation, buffers: TwoBuffers, value: int) -> None:
    """A call that adds this value to every gradient."""
    accumulation.open()
    for gradient in buffers.gradients:
        gradient += value
    accumulation.added()


def total(accumulation: Accumulation, buffers: TwoBuffers) -> list[float]:
    """As an update would see it."""
    accumulation.collect()
    return [value for tensor in buffers.tensors for value in tensor.tolist()]


@given(st.lists(st.one_of(st.integers(-9, 9), st.sampled_from(["keep", "collect", "drop"]))), st.booleans())
def test_the_sum_is_that_of_everything_added_since_the_last_drop(actions: list[int | str], offloads: bool) -> None:
    buffers, expected = TwoBuffers(), 0
    accumulation = Accumulation(buffers, HOST, offloads=offloads)
    for action in actions:
        match action:
            case "keep":
                accumulation.keep()
            case "collect":
                accumulation.collect()
            case "drop":
                accumulation.drop()
                expected = 0
            case int():
                add(accumulation, buffers, action)
                expected += action
    assert total(accumulation, buffers) == [float(expected)] * 8


@pytest.mark.parametrize("offloads", [False, True])
def test_what_waits_on_the_host_holds_no_buffers(offloads: bool) -> None:
    buffers = TwoBuffers()
    accumulation = Accumulation(buffers, HOST, offloads=offloads)
    assert not buffers.tensors
    add(accumulation, buffers, 1)
    assert bool(buffers.tensors) is not offloads
    accumulation.keep()
    assert not buffers.tensors


@pytest.mark.parametrize("offloads", [False, True])
def test_a_difference_is_that_of_the_parameter_that_is_furthest_off(offloads: bool) -> None:
    buffers = TwoBuffers()
    accumulation = Accumulation(buffers, HOST, offloads=offloads)
    add(accumulation, buffers, 4)

    def plain_pass() -> None:
        for gradient, value in zip(buffers.gradients, (4.0, 5.0, 4.0), strict=True):
            assert not gradient.any(), "it begins with zeros"
            gradient += value

    assert accumulation.difference(plain_pass, lambda tensor: tensor.mul_(3), 1.0) == pytest.approx(0.2)
    assert total(accumulation, buffers) == [4.0] * 8, "what was accumulated is still there"


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.0], [0.0, 0.0], 5.0 / 10),
        ([0.0, 0.0], [3.0, 4.0], 1.0),
        ([float("nan"), 4.0], [3.0, 4.0], float("inf")),
        ([3.0, 4.0], [float("nan"), 4.0], float("inf")),
    ],
)
def test_differences_are_relative_where_they_can_be(
    actual: list[float], expected: list[float], difference: float
) -> None:
    assert relative_difference(torch.tensor(actual), torch.tensor(expected), 10.0) == difference


def test_a_norm_is_added_up_in_double_precision() -> None:
    values = torch.full(((1 << 24) + 100,), 1e-4)
    assert norm(values) == pytest.approx(float(values[0]) * len(values) ** 0.5, rel=1e-9)
