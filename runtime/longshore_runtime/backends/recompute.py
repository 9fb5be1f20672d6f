"""Compute parts of layers again in the backward pass, instead of keeping them."""

from functools import partial
from typing import Any, Final

import torch
import torch.nn.attention.varlen  # Registers the operator of the same name.
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from longshore.api.training import Recompute
from longshore.checks.memory import least_recompute
from longshore_runtime.backends.trainer_protocol import TrainerOptions

_aten: Final = torch.ops.aten
_KEPT: Final[list[Any]] = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._grouped_mm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
]
"""What Selective keeps, because it takes long: products of matrices, also those of linear layers, and attention."""


def chosen_recompute(options: TrainerOptions, device: torch.device) -> Recompute:
    """Return what a trainer on this device computes again: as the job says, or as little as the GPU has memory for."""
    if options.recompute is not None:
        return options.recompute
    if device.type != "cuda":
        return Recompute.NONE
    return least_recompute(torch.cuda.get_device_properties(device).total_memory, options.recompute_needs)


def set_recompute(module: Any, recompute: Recompute, *, is_compiled: bool) -> None:
    """Have the layers of a model of transformers computed again, which they are in training mode only.

    With compiled layers, Selective is Full: torch's checkpoint does not see the products of matrices in them.
    """
    if recompute is Recompute.NONE:
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if recompute is Recompute.SELECTIVE and not is_compiled:
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _KEPT)
    module.gradient_checkpointing_enable(settings)
