"""The torch trainer's communication: joining the world, and the one sum that an update needs."""

from datetime import timedelta

import torch
import torch.distributed as dist

from longshore_runtime.backends.world import World

_TIMEOUT = timedelta(minutes=30)
"""A replica may wait so long for one that still computes; a lost one breaks the connection at once."""


def join(world: World, device: torch.device) -> None:
    """Meet the other replicas (nccl on CUDA, gloo elsewhere); a world of one meets nobody."""
    if world.size == 1:
        return
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{world.host}:{world.port}",
        rank=world.rank,
        world_size=world.size,
        timeout=_TIMEOUT,
        # Connects the replicas at once: those that sleep later are not needed to wake one, nor for its passes.
        device_id=torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else None,
    )


def add_up(world: World, values: torch.Tensor) -> None:
    """Replace `values` by their sum over all replicas, in place."""
    if world.size > 1:
        dist.all_reduce(values)
