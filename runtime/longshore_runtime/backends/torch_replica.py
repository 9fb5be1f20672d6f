"""The replica that a rank of a torch trainer belongs to; here, a replica of one rank, with whole models."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from longshore.api.training import Lora
from longshore_runtime.backends.accumulation import norm
from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.hf_mapping.files import ALL_ROWS
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.value_model import ValueModel
from longshore_runtime.backends.world import World


class Replica:
    """A replica of one rank. A subclass for replicas of several ranks overrides what differs."""

    def __init__(self, world: World, device: torch.device) -> None:
        """Describe the replica of a rank that computes on `device`."""
        self._world = world
        self._device = device

    @property
    def number(self) -> int:
        """Number of the replica in the world."""
        return self._world.rank

    @property
    def is_first_rank(self) -> bool:
        """Whether this rank is the first of its replica, which reports for all."""
        return True

    def load(self, directory: Path, lora: Lora | None = None, *, replays_experts: bool = False) -> CausalLM:
        """Load this rank's part of a model from a Hugging Face directory; raises OSError or ValueError.

        With `lora`, an adapter of it is trained, which has no values yet. With `replays_experts`, tokens pass through
        the experts that engines chose.
        """
        return CausalLM(directory, self._device, lora, replays_experts=replays_experts)

    def load_value_model(self, directory: Path) -> ValueModel:
        """Load this rank's part of a value model that begins as a Hugging Face directory of a language model."""
        return ValueModel(directory, self._device)

    def passes(self, micro_batches: list[list[int]]) -> list[list[int]]:
        """Return what each pass that this rank makes is over, given the micro-batches of its samples."""
        return micro_batches

    def total(self, sums: GradientSums) -> GradientSums:
        """Return the sum over the ranks of the replica."""
        return sums

    def add_up(self, values: Tensor) -> None:
        """Sum this rank's part of the gradients over all replicas, in place."""
        if self._world.size > 1:
            dist.all_reduce(values)

    def norm(self, values: Tensor) -> float:
        """Return the Euclidean norm of all gradients, given this rank's part; computed in double precision."""
        return norm(values)

    def own(self, tensor: Tensor) -> Tensor:
        """Return the values that this rank holds of a parameter, or of a tensor that is distributed like one."""
        return tensor.detach()

    def spread(self, own: Tensor, like: Tensor) -> Tensor:
        """Undo `own`: return a tensor distributed like a parameter, which shares memory with `own`."""
        return own.view_as(like)

    def whole(self, tensor: Tensor) -> Tensor:
        """Return all values of a parameter, on this rank; all ranks of the replica must call this together."""
        return tensor.detach()

    def whole_on_host(self, own: Tensor, num_rows: int) -> Tensor:
        """Return all values of a parameter of which this rank has `own` on the host; may be called in any thread.

        All ranks of the first replica must call this together.
        """
        return own

    def rows(self, parameter: Tensor) -> slice:
        """Return which rows of a parameter this rank holds."""
        return ALL_ROWS

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Group of the ranks of the replica; None: there is one rank."""
        return None

    @property
    def writing_group(self) -> dist.ProcessGroup | None:
        """The ranks of the first replica, for tensors on the host and a thread that writes; None: there is one rank."""
        return None
