"""Memory of the host that GPUs copy from, on a machine without one: what is asked of the driver."""

from typing import Any

import pytest
import torch

from longshore_runtime.backends import pinned_memory
from longshore_runtime.backends.accumulation import _HostSums
from longshore_runtime.backends.pinned_memory import PinnedMemory

GPU = torch.device("cuda")


class Driver:
    """Notes what is pinned."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802 - as CUDA has it
        self.pinned[address] = num_bytes
        return self.error

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.pinned[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(pinned_memory, "_cuda", lambda: driver)
    return driver


def test_exactly_what_is_kept_is_pinned_and_only_as_long_as_its_owner_lives(driver: Driver) -> None:
    memory, values = PinnedMemory(GPU), torch.zeros(1000)
    assert memory.pin(values) is values
    assert driver.pinned == {values.data_ptr(): 4000}
    del memory
    assert driver.pinned == {}


def test_nothing_is_pinned_without_a_gpu(driver: Driver) -> None:
    PinnedMemory(torch.device("cpu")).pin(torch.zeros(3))
    assert driver.pinned == {}


def test_memory_that_cannot_be_pinned_serves_as_it_is(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.error = 2
    memory, first, second = PinnedMemory(GPU), torch.zeros(3), torch.zeros(4)
    zeros = torch.zeros

    def error_that_cuda_remembers(*shape: int, **named: Any) -> torch.Tensor:
        assert named == {"device": GPU}
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "zeros", error_that_cuda_remembers)
    assert (memory.pin(first) is first, memory.pin(second) is second) == (True, True)
    monkeypatch.setattr(torch, "zeros", zeros)
    assert set(driver.pinned) == {first.data_ptr()}, "it does not try again"


def test_gradients_on_the_host_take_no_more_than_they_need(driver: Driver) -> None:
    """torch's own pinned memory is rounded up to a power of two."""
    sums = _HostSums(GPU)
    sums.add([torch.ones(1025), torch.ones(3)])
    assert sorted(driver.pinned.values()) == [12, 4100]
