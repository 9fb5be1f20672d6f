"""Measure how much memory a device has, and how much of it is free."""

from typing import Final

import torch

_UNLIMITED: Final = 1 << 62
"""Bytes that stand for the memory of the host, of which a streamed model is not short."""


def total_bytes(device: torch.device) -> int:
    """Return the memory of a device, in bytes."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else _UNLIMITED


def free_bytes(device: torch.device) -> int:
    """Return the free bytes, including those that this process's allocator caches."""
    if device.type != "cuda":
        return _UNLIMITED
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
