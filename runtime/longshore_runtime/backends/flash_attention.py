"""The newest FlashAttention that torch can call: it has 2, and calls 3 or 4 where their packages are installed."""

from importlib.util import find_spec
from typing import Any, Final

import structlog
import torch
from torch import Tensor
from torch.nn.attention import (
    activate_flash_attention_impl,
    current_flash_attention_impl,
    restore_flash_attention_impl,
)
from torch.nn.attention.varlen import varlen_attn

from longshore_runtime.backends.attention_kernels import PACKED

log = structlog.get_logger()

_NEWER: Final = {9: ("FA3", "flash_attn_interface"), 10: ("FA4", "flash_attn.cute")}
"""Names in torch, and modules, by the major compute capability of the GPUs that they are made for."""
_ROUNDING: Final = 0.02
"""Relative difference that two kernels may show which compute in bfloat16."""


def newest_flash_attention(major: int) -> str | None:
    """Return torch's name of the version that is newer than 2, installed, and made for GPUs of this capability."""
    name, module = _NEWER.get(major, (None, ""))
    return name if name is not None and _is_installed(module) else None


def use_newest_flash_attention(device: torch.device, config: Any) -> None:
    """Switch torch to the newest FlashAttention, if it computes heads of this model as FlashAttention-2 does.

    Torch 2.13 calls its own part of it a prototype, and not every version of the packages has every head size.

    Args:
        device: device of the model.
        config: configuration of transformers of a model whose attention is chosen.
    """
    if device.type != "cuda" or config._attn_implementation != PACKED:
        return
    name = newest_flash_attention(torch.cuda.get_device_capability(device)[0])
    if name is None or current_flash_attention_impl() == name:
        return
    settings = config.get_text_config()
    head_size = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    expected = attention_and_gradients(device, head_size)
    try:
        activate_flash_attention_impl(name)
        found = attention_and_gradients(device, head_size)
        if any(torch.dist(one, other) > _ROUNDING * other.norm() for one, other in zip(found, expected, strict=True)):
            raise RuntimeError(f"it computes other values for heads of {head_size}")
    except Exception as error:  # noqa: BLE001 - kernels that are compiled now raise errors of their own
        if current_flash_attention_impl() is not None:
            restore_flash_attention_impl()
        log.warning("attention stays with FlashAttention-2", instead_of=name, error=str(error))
    else:
        log.info("attention is computed by a newer FlashAttention", version=name)


def attention_and_gradients(device: torch.device, head_size: int) -> list[Tensor]:
    """Compute causal attention of two sequences of random heads in bfloat16, and its gradients, in float32."""
    generator = torch.Generator(device).manual_seed(0)
    query, key, value = (
        torch.randn(256, heads, head_size, generator=generator, device=device).to(torch.bfloat16).requires_grad_()
        for heads in (4, 2, 2)
    )
    ends = torch.tensor([0, 100, 256], dtype=torch.int32, device=device)
    found = varlen_attn(query, key, value, ends, ends, 156, 156, window_size=(-1, 0), enable_gqa=True)
    assert isinstance(found, Tensor)
    gradients = torch.autograd.grad(found.float().square().sum(), (query, key, value))
    return [one.detach().float() for one in (found, *gradients)]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # The package that it is in is not installed.
        return False
