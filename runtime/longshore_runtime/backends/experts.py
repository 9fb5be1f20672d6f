"""The experts of a mixture: how transformers computes them."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

EAGER: Final = "eager"
"""Computation of one expert after the other, which every device, type and size allows."""
_TOGETHER: Final = "grouped_mm"
"""Computation of all experts of a layer at once, with torch's grouped product of matrices."""
ALIGNMENT: Final = 8
"""Values of bfloat16 in 16 bytes, of which a row must be a multiple for grouped products."""


def expert_modules(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules that hold the experts of a layer, fused into one tensor for each projection, with their names.

    Models whose experts are modules of their own have none.
    """
    for name, module in model.named_modules():
        if hasattr(module, "_is_expert_parallel"):  # Set by transformers' `use_experts_implementation`.
            yield name, module


def group_experts(model: Any) -> None:
    """Have the experts of each layer computed at once, if their sizes allow it.

    A model that was opened with `EAGER` keeps it otherwise. Values and gradients are equal up to
    rounding.
    """
    modules = [module for _, module in expert_modules(model)]
    if modules and are_aligned(modules):
        choose_experts_function(model, _TOGETHER)


def choose_experts_function(model: Any, name: str) -> None:
    """Have the experts computed by a function of transformers, also in layers with settings of their own."""
    model.set_experts_implementation(name)
    for _, module in expert_modules(model):
        module.config._experts_implementation = name


def are_aligned(modules: Iterable[torch.nn.Module]) -> bool:
    """Return whether grouped products can have the sizes of these experts."""
    fused = [parameter for module in modules for parameter in module.parameters() if parameter.dim() > 2]
    return all(size % ALIGNMENT == 0 for parameter in fused for size in parameter.shape[1:])
