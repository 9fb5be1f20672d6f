"""Experts of a mixture that are spread over the ranks of a replica: tokens go to the rank that holds their expert.

Each rank holds the experts that are its shard anyway, so that everything but the computation finds them as it finds
other shards. FSDP leaves them alone: they are never put together, and their gradients need no sum over ranks, because
the rank that holds an expert has computed all its tokens.
"""

from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single  # With a gradient.
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from longshore_runtime.backends.experts import are_aligned, choose_experts_function, expert_modules

_IMPLEMENTATION: Final = "longshore_spread"
"""Name under which transformers finds `_compute`."""


def spread_mistake(model: Any, num_ranks: int) -> str | None:
    """Return why the experts of a model cannot be spread over so many ranks; None: they can."""
    modules = [module for _, module in expert_modules(model)]
    if not modules:
        return "trainer.expertParallel: the model has no routed experts that can be spread; remove it"
    if not are_aligned(modules):
        return "trainer.expertParallel: the sizes of the experts have no grouped product; remove it"
    if number := next((module.num_experts for module in modules if module.num_experts % num_ranks), None):
        return (
            f"trainer.fsdpSize: {num_ranks} does not divide the model's {number} experts, which expertParallel "
            "spreads; choose a size that does, or remove expertParallel"
        )
    return None


def spread_experts(model: Any, mesh: DeviceMesh) -> set[torch.nn.Parameter]:
    """Keep a rank's share of the experts of each layer, and send tokens to the others; return what FSDP leaves alone.

    Args:
        model: model of transformers on the meta device, whose experts can be spread.
        mesh: the ranks of the replica.
    """
    found = set[torch.nn.Parameter]()
    for _, module in expert_modules(model):
        module.mesh = mesh
        for name, whole in list(module.named_parameters(recurse=False)):
            own = torch.empty(len(whole) // mesh.size(), *whole.shape[1:], dtype=whole.dtype, device=whole.device)
            placed = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
            parameter = torch.nn.Parameter(placed, requires_grad=whole.requires_grad)
            setattr(module, name, parameter)
            found.add(parameter)
    ALL_EXPERTS_FUNCTIONS.register(_IMPLEMENTATION, _compute)
    choose_experts_function(model, _IMPLEMENTATION)
    return found


class _OwnExperts:
    """The experts of a layer that this rank holds, as transformers' functions take experts."""

    def __init__(self, experts: Any, dtype: torch.dtype) -> None:
        self._experts = experts
        self.num_experts = experts.num_experts // experts.mesh.size()
        for name, parameter in experts.named_parameters(recurse=False):
            setattr(self, name, cast(DTensor, parameter).to_local().to(dtype))

    def __getattr__(self, name: str) -> Any:
        """Return anything else of the layer."""
        return getattr(self._experts, name)


@torch.compiler.disable
def _compute(experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute the experts of a layer where they are, as an experts function of transformers.

    All ranks of the replica call this together, each with tokens of its own. A token is sent once for each of its
    experts.

    Args:
        experts: the module with the experts.
        hidden_states: [tokens, hidden size].
        top_k_index: experts of each token, [tokens, experts per token].
        top_k_weights: their weights, of the same shape.
    """
    own, group = _OwnExperts(experts, hidden_states.dtype), experts.mesh.get_group()
    chosen, order = torch.sort(top_k_index.reshape(-1), stable=True)
    # Rows by rank and expert; a rank's experts have consecutive numbers.
    sent = torch.bincount(chosen, minlength=experts.num_experts).view(-1, own.num_experts)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    num_sent, num_received = sent.sum(1).tolist(), received.sum(1).tolist()
    numbers = torch.arange(own.num_experts, device=sent.device).repeat(len(received))
    numbers = numbers.repeat_interleave(received.flatten())[:, None]
    rows = all_to_all_single(hidden_states[order // top_k_index.shape[-1]], num_received, num_sent, group)
    num_rows = len(rows)
    if num_rows == 0:  # Not every kernel has products and gradients without rows.
        rows, numbers = pad(rows, (0, 0, 0, 1)), numbers.new_zeros(1, 1)
    # The weights of the experts, which have a gradient, stay with the rank that has the token.
    rows = grouped_mm_experts_forward(cast(Any, own), rows, numbers, rows.new_ones(numbers.shape))[:num_rows]
    rows = all_to_all_single(rows, num_sent, num_received, group)
    weighted = rows * top_k_weights.reshape(-1)[order, None]
    return weighted[torch.argsort(order)].view(*top_k_index.shape, -1).sum(1).to(hidden_states.dtype)
