"""The experts of a mixture: how transformers computes them."""

from collections.abc import Iterator
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
    fused = [
        parameter for _, module in expert_modules(model) for parameter in module.parameters() if parameter.dim() > 2
    ]
    if fused and all(size % ALIGNMENT == 0 for parameter in fused for size in parameter.shape[1:]):
        model.set_experts_implementation(_TOGETHER)
