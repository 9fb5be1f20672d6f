"""Join the world of trainers that use torch."""

from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from longshore_runtime.backends.gloo_device import share_device
from longshore_runtime.backends.world import World
from longshore_runtime.settings import host_port

TIMEOUT: Final = timedelta(minutes=30)
"""Longest time that a replica waits for one that still computes; a lost one breaks the connection at once."""


def join(world: World, device: torch.device) -> None:
    """Meet the other ranks (nccl on CUDA, gloo elsewhere); later trainers share a world of one."""
    share_device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    if world.size == 1:
        if not dist.is_initialized():
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        return
    dist.init_process_group(
        backend=backend,
        init_method=f"tcp://{host_port(world.host, world.port)}",
        rank=world.rank,
        world_size=world.size,
        timeout=TIMEOUT,
        # Connects the replicas at once: those that sleep later are not needed to wake one, nor for its passes.
        device_id=torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else None,
    )
