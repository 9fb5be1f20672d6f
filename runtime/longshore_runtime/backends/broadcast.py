"""Send bytes from a trainer rank to engine workers in other pods: by NCCL on GPUs, otherwise by gloo."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from longshore_runtime.weights.shared import BroadcastGroup


class Broadcast:
    """One member of a group, which is independent of other groups of its process. A lost member breaks the group."""

    def __init__(self, channel: BroadcastGroup, rank: int, device: torch.device) -> None:
        """Meet the other members; values are on `device`. Raises RuntimeError if one does not come."""
        limit = timedelta(seconds=channel.limit_s)
        store = TCPStore(
            channel.host, channel.port, channel.size, is_master=rank == 0, timeout=limit, wait_for_workers=False
        )
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._group: Any = dist.ProcessGroupNCCL(store, rank, channel.size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, channel.size, limit)
        self._store = store
        self._device = device

    def run(self, values: Tensor) -> None:
        """Replace `values` by those of rank 0; return when this is done."""
        self._group.broadcast(values, 0).wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
