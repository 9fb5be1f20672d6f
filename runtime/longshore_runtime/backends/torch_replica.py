"""What a torch trainer knows of the replica that its rank belongs to: here one of a single rank, with whole models."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from longshore_runtime.backends.accumulation import norm
from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.micro_batches import pack
from longshore_runtime.backends.world import World
from longshore_runtime.sums import GradientSums


class Replica:
    """One rank. Those that several ranks hold together override what they do otherwise."""

    def __init__(self, world: World, device: torch.device) -> None:
        """`device` computes."""
        self._world = world
        self._device = device

    @property
    def number(self) -> int:
        """Among the replicas of the world."""
        return self._world.rank

    @property
    def is_first_rank(self) -> bool:
        """Whether this rank speaks for its replica."""
        return True

    def load(self, directory: Path) -> CausalLM:
        """This rank's part of the model in a Hugging Face directory; raises OSError or ValueError."""
        return CausalLM(directory, self._device)

    def micro_batches(self, lengths: Sequence[int], max_padded_tokens: int) -> list[list[int]]:
        """Indices of the sequences of every pass that this rank makes."""
        return pack(lengths, max_padded_tokens)

    def total(self, sums: GradientSums) -> GradientSums:
        """Over the ranks of the replica."""
        return sums

    def add_up(self, values: Tensor) -> None:
        """Replace this rank's part of the gradients by its sum over all replicas, in place."""
        if self._world.size > 1:
            dist.all_reduce(values)

    def norm(self, values: Tensor) -> float:
        """Euclidean norm of the gradients that this is a rank's part of, added up in double precision."""
        return norm(values)

    def own(self, tensor: Tensor) -> Tensor:
        """The values that this rank holds of a parameter, or of anything that is shaped and spread like one."""
        return tensor.detach()

    def spread(self, own: Tensor, like: Tensor) -> Tensor:
        """The reverse: spread like a parameter, with these values on this rank, which it shares the memory of."""
        return own.view_as(like)

    def whole(self, tensor: Tensor) -> Tensor:
        """All values of it, on this rank; all ranks of the replica call it together."""
        return tensor.detach()

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """The reverse: spread like a parameter, with these values in all."""
        return whole
