"""Where tensors are while they are not on the device, on a machine that has no other than the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from longshore_runtime.backends.devices import HOST
from longshore_runtime.backends.host_copies import HostCopies, Move

DEVICE = torch.device("meta")
"""Stands for a GPU."""


@dataclass
class Values:
    """What `HostCopies` knows of a tensor, with values on every device."""

    values: Sequence[int]
    device: torch.device = DEVICE
    num_copies: int = 0

    def to(self, device: torch.device, non_blocking: bool = False) -> "Values":
        return self if device == self.device else Values(self.values, device)

    def copy_(self, other: "Values") -> "Values":
        self.values, self.num_copies = other.values, self.num_copies + 1
        return self


class Holder:
    """Has tensors, two of which are one, as in a model with tied embeddings."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {"embedding": Values([1]), "layer": Values([2])}

    def apply(self, move: Move) -> None:
        for name in ("embedding", "layer", "embedding"):
            self.tensors[name] = move(self.tensors[name])

    @property
    def state(self) -> list[tuple[torch.device, Sequence[int]]]:
        return [(tensor.device, tensor.values) for tensor in self.tensors.values()]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_tensors_leave_and_come_back(is_frozen: bool) -> None:
    holder = Holder()
    copies = HostCopies(DEVICE, holder.apply, is_frozen=lambda tensor: is_frozen)
    for _ in range(3):
        copies.leave()
        copies.leave()
        assert holder.state == [(HOST, [1]), (HOST, [2])]
        copies.come_back()
        copies.come_back()
        assert holder.state == [(DEVICE, [1]), (DEVICE, [2])]


def test_memory_on_the_host_is_kept_and_has_the_newest_values() -> None:
    holder = Holder()
    copies = HostCopies(DEVICE, holder.apply)
    copies.leave()
    first = dict(holder.tensors)
    copies.come_back()
    holder.tensors["layer"].values = [3]
    copies.leave()
    assert all(holder.tensors[name] is first[name] for name in first)
    assert holder.state == [(HOST, [1]), (HOST, [3])]


def test_what_never_changes_is_copied_to_the_host_once() -> None:
    holder = Holder()
    copies = HostCopies(DEVICE, holder.apply, is_frozen=lambda tensor: tensor is holder.tensors["embedding"])
    for number in range(3):
        copies.leave()
        assert [tensor.num_copies for tensor in holder.tensors.values()] == [0, number]
        copies.come_back()


def test_tensors_keep_their_memory_when_only_some_of_them_leave() -> None:
    """As after a failure: what is on the host already is in its memory, which no other tensor may get."""
    holder = Holder()
    copies = HostCopies(DEVICE, holder.apply)
    copies.leave()
    first = dict(holder.tensors)
    copies.come_back()
    holder.tensors["embedding"] = first["embedding"]
    copies.leave()
    copies.come_back()
    copies.leave()
    assert all(holder.tensors[name] is first[name] for name in first)
    assert holder.state == [(HOST, [1]), (HOST, [2])]
