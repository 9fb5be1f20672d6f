"""The data-parallel world of the torch trainer: who belongs to it, and the one sum it needs."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(minutes=30)
"""A replica may wait so long for one that still computes; a lost one breaks the connection at once."""


@dataclass(frozen=True)
class World:
    """Place of one replica among all, and where they meet."""

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    port: int = 0

    def join(self, device: torch.device) -> None:
        """Meet the other replicas (nccl on CUDA, gloo elsewhere); a world of one meets nobody."""
        if self.size == 1:
            return
        dist.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            init_method=f"tcp://{self.host}:{self.port}",
            rank=self.rank,
            world_size=self.size,
            timeout=_TIMEOUT,
        )

    def add_up(self, values: torch.Tensor) -> None:
        """Replace `values` by their sum over all replicas, in place."""
        if self.size > 1:
            dist.all_reduce(values)
