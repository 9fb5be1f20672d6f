"""Every layer finds its own weights, in whatever order copies finish, and no buffer is filled while it is read."""

import contextlib
import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longshore_runtime.backends.streamed_lm.copies import ImmediateCopies
from longshore_runtime.backends.streamed_lm.host_layers import HostLayers
from longshore_runtime.backends.streamed_lm.ring import LayerRing

CPU = torch.device("cpu")
NUM_LAYERS = 6


class LateCopies:
    """Copies as late as they may be: when the buffer is awaited. A copy into a buffer that is read is an error."""

    def __init__(self) -> None:
        self._under_way: dict[int, Callable[[], None]] = {}
        self._read: set[int] = set()

    def writes(self, memory: Tensor) -> None:
        """The host's memory is not given away while something refers to it."""

    def start(self, buffer: int, copy: Callable[[], None]) -> None:
        assert buffer not in self._read, "filled while it is read"
        self._under_way[buffer] = copy

    def await_filled(self, buffer: int) -> None:
        if buffer in self._under_way:
            self._under_way.pop(buffer)()
        self._read.add(buffer)

    def release(self, buffer: int) -> None:
        self._read.discard(buffer)

    def wait_all(self) -> None:
        self._under_way, self._read = {}, set()


def layer(number: int) -> torch.nn.Module:
    linear = torch.nn.Linear(3, 5)
    for parameter in linear.parameters():
        torch.nn.init.constant_(parameter, float(number))
    return linear


def host() -> HostLayers:
    return HostLayers([layer(number) for number in range(NUM_LAYERS)], pinned=False)


def values(weights: dict[str, Tensor]) -> set[float]:
    return {value for tensor in weights.values() for value in tensor.flatten().tolist()}


passes = st.lists(
    st.tuples(st.sets(st.integers(0, NUM_LAYERS - 1)), st.integers(0, NUM_LAYERS)), min_size=1, max_size=8
)


@given(passes, st.integers(1, 4), st.booleans())
def test_each_layer_finds_its_own_weights(plan: list[tuple[set[int], int]], num_buffers: int, late: bool) -> None:
    """A pass arranges some layers as resident, and may break off after any layer."""
    ring = LayerRing(host(), CPU, num_buffers, LateCopies() if late else ImmediateCopies())
    for resident, num_run in plan:
        ring.arrange(resident)
        assert ring.resident == resident
        for number in range(num_run):
            with ring.weights(number) as weights:
                assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
                    "weight": (5, 3),
                    "bias": (5,),
                }
                assert values(weights) == {float(number)}


def test_a_computation_that_fails_leaves_the_next_pass_right() -> None:
    ring = LayerRing(host(), CPU, 2, LateCopies())
    with pytest.raises(RuntimeError, match="out of memory"), ring.weights(0):
        raise RuntimeError("out of memory")
    for number in range(NUM_LAYERS):
        with ring.weights(number) as weights:
            assert values(weights) == {float(number)}


def test_layers_leave_the_host_copy_alone_and_have_no_weights_themselves() -> None:
    layers = [layer(number) for number in range(2)]
    weights = HostLayers(layers, pinned=False)
    assert all(parameter.is_meta for one in layers for parameter in one.parameters())
    flat = weights.layout.flat(CPU)
    weights.copy_to(1, flat)
    flat.zero_()
    weights.copy_to(1, flat)
    assert values(weights.layout.views(flat)) == {1.0}


def test_a_layer_larger_than_one_piece_arrives_whole() -> None:
    big = torch.nn.Linear(3_000, 3_000)  # 36 MB: two pieces.
    expected = {name: parameter.detach().clone() for name, parameter in big.named_parameters()}
    weights = HostLayers([big], pinned=False)
    flat = weights.layout.flat(CPU)
    weights.copy_to(0, flat)
    for name, tensor in weights.layout.views(flat).items():
        assert torch.equal(tensor, expected[name])


def test_layers_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="its decoder layers differ from each other"):
        HostLayers([torch.nn.Linear(3, 5), torch.nn.Linear(3, 6)], pinned=False)


def test_layers_with_buffers_or_mixed_types_are_refused() -> None:
    with pytest.raises(ValueError, match="mix types of numbers or hold buffers"):
        HostLayers([torch.nn.BatchNorm1d(3)], pinned=False)
    mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="mix types of numbers or hold buffers"):
        HostLayers([mixed], pinned=False)


@pytest.mark.parametrize("before", [set(range(NUM_LAYERS)), {0, 1}, set()])
@pytest.mark.parametrize("wanted", [{1, 2, 4}, set(), set(range(NUM_LAYERS))])
@pytest.mark.parametrize("num_allocated", range(NUM_LAYERS))
def test_memory_that_is_short_for_a_moment_leaves_the_next_attempt_right(
    before: set[int], wanted: set[int], num_allocated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = host()
    ring = LayerRing(layers, CPU, 2, LateCopies())
    ring.arrange(before)
    flat, made = layers.layout.flat, itertools.count()

    def short(device: torch.device) -> Tensor:
        if next(made) == num_allocated:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return flat(device)

    with monkeypatch.context() as patch, contextlib.suppress(torch.OutOfMemoryError):
        patch.setattr(layers.layout, "flat", short)
        ring.arrange(wanted)
    ring.arrange(wanted)
    assert ring.resident == wanted
    for number in range(NUM_LAYERS):
        with ring.weights(number) as weights:
            assert values(weights) == {float(number)}
