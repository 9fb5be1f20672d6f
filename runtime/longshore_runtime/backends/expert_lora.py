"""Low-rank matrices of the experts of a mixture, which transformers fuses into one tensor for each projection.

Files hold two matrices for each projection of each expert, as PEFT writes them for experts that are modules of their
own. vLLM reads these names, and PEFT fuses them when it loads them.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from longshore_runtime.backends.experts import ALIGNMENT, choose_experts_function, expert_modules

_IMPLEMENTATION: Final = "longshore_lora"
"""Name under which transformers finds `_compute`."""
_FUSED: Final = ("gate_up_proj", "down_proj")
_COLUMNS: Final = 2
"""Columns of a tensor that transformers takes apart to show where its rows go; it drops a single one."""


class _Projection(torch.nn.Module):
    """A and B of one projection of all experts, [experts, rank, inputs] and [experts, outputs, rank]."""

    def __init__(self, rank: int, num_experts: int, outputs: int, inputs: int, device: torch.device) -> None:
        super().__init__()
        self.lora_A = torch.nn.Parameter(torch.zeros(num_experts, rank, inputs, device=device))
        self.lora_B = torch.nn.Parameter(torch.zeros(num_experts, outputs, rank, device=device))


class ExpertMatrices(torch.nn.Module):
    """The matrices of the experts of one layer; a child of the module of transformers that holds these experts."""

    def __init__(self, scale: float) -> None:
        """Hold no matrices yet; what they add is multiplied by `scale`."""
        super().__init__()
        self.scale = scale
        self._disable_adapters = False  # The name that PEFT gives it in its layers.

    def added(self, fused: str, rows: Tensor, offsets: Tensor) -> Tensor | float:
        """Return what the matrices add to the product of rows [tokens, inputs] with a fused parameter."""
        if self._disable_adapters:
            return 0.0
        parts: Any = self.get_submodule(fused)
        return self.scale * torch.cat(
            [_product(_product(rows, part.lora_A, offsets), part.lora_B, offsets) for part in parts], dim=-1
        )


def add_matrices(
    model: Any, rank: int, scale: float, parts_of: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]
) -> tuple[list[ExpertMatrices], dict[str, tuple[str, ...]]]:
    """Add matrices of zeros in float32 to all experts of a model.

    Args:
        model: model of transformers, with weights or on the meta device.
        rank: rank of the matrices of one projection of one expert.
        scale: factor of what is added.
        parts_of: function that returns a parameter as tensors of the model's files, each with its name.

    Returns:
        The modules with the matrices, and for each matrix its names in files without those that PEFT adds.

    Raises:
        ValueError: the model has no experts, or its files do not hold each projection of each expert as a tensor.
    """
    modules = list(expert_modules(model))
    if not modules:
        raise ValueError("trainer.lora.experts: the model has no routed experts that can be adapted; remove it")
    found, names = list[ExpertMatrices](), dict[str, tuple[str, ...]]()
    for path, module in modules:
        if not module.has_gate or module.has_bias or module.is_transposed or not module.is_concatenated:
            raise ValueError(_NOT_APART)
        module.lora = ExpertMatrices(scale)
        found.append(module.lora)
        for fused in _FUSED:
            weight = module.get_parameter(fused)
            layers = torch.nn.ModuleList()
            for parts in _projections(f"{path}.{fused}", weight, parts_of):
                outputs, inputs = len(parts[0][1]), weight.shape[-1]
                prefix = f"{path}.lora.{fused}.{len(layers)}"
                layers.append(_Projection(rank, len(weight), outputs, inputs, weight.device))
                for matrix in ("lora_A", "lora_B"):
                    names[f"{prefix}.{matrix}"] = tuple(
                        f"{name.removesuffix('.weight')}.{matrix}.weight" for name, _ in parts
                    )
            module.lora.add_module(fused, layers)
    ALL_EXPERTS_FUNCTIONS.register(_IMPLEMENTATION, _compute)
    choose_experts_function(model, _IMPLEMENTATION)
    return found, names


def _projections(
    name: str, weight: Tensor, parts_of: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]
) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield the tensors of files with the first rows of every expert, then those with the next rows, and so on."""
    num_experts, outputs, _ = weight.shape
    # Each row has its number, so that every part tells which rows it has.
    numbered = torch.arange(num_experts * outputs).view(num_experts, outputs, 1).expand(-1, -1, _COLUMNS)
    starts: dict[int, list[tuple[str, Tensor]]] = {}
    for part, values in parts_of(name, numbered):
        first = int(values.flatten()[0])
        if not torch.equal(values, first + torch.arange(len(values))[:, None].expand(-1, _COLUMNS)):
            raise ValueError(_NOT_APART)
        starts.setdefault(first % outputs, []).append((part, values))
    for _, parts in sorted(starts.items()):
        if len(parts) != num_experts:
            raise ValueError(_NOT_APART)
        yield sorted(parts, key=lambda part: int(part[1][0, 0]))


def _compute(experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute all experts of a layer at once, as an experts function of transformers.

    Args:
        experts: the module with the experts.
        hidden_states: [tokens, hidden size].
        top_k_index: experts of each token, [tokens, experts per token].
        top_k_weights: their weights, of the same shape.
    """
    lora: ExpertMatrices = experts.lora
    chosen, order = torch.sort(top_k_index.reshape(-1), stable=True)
    numbers = torch.arange(len(experts.gate_up_proj), device=chosen.device)
    offsets = torch.searchsorted(chosen, numbers, right=True).int()
    rows = hidden_states[order // top_k_index.shape[-1]]
    gates = _product(rows, experts.gate_up_proj, offsets) + lora.added("gate_up_proj", rows, offsets)
    rows = experts._apply_gate(gates)
    rows = _product(rows, experts.down_proj, offsets) + lora.added("down_proj", rows, offsets)
    weighted = rows * top_k_weights.reshape(-1)[order, None]
    return weighted[torch.argsort(order)].view(*top_k_index.shape, -1).sum(1).to(hidden_states.dtype)


def _product(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """Multiply rows, which are sorted by expert, by the weights [experts, outputs, inputs] of their experts."""
    weights = weights.transpose(-2, -1)
    if all(size % ALIGNMENT == 0 for size in weights.shape[1:]):
        return grouped_mm(rows, weights, offs=offsets)
    product: Tensor = torch.ops.transformers.grouped_mm_fallback(rows, weights, offs=offsets)
    return product


_NOT_APART: Final = (
    "trainer.lora.experts: the files of the model do not hold each projection of each expert as a tensor of its own; "
    "remove it"
)
