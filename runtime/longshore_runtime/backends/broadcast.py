"""Bytes from a rank of the trainer to workers of engines in other pods: by NCCL on GPUs, by gloo elsewhere."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from longshore_runtime.weights.shared import BroadcastGroup


class Broadcast:
    """One member, apart from whatever other groups its process is in. A lost member breaks it for all."""

    def __init__(self, channel: BroadcastGroup, rank: int, device: torch.device) -> None:
        """Meet the others; `device` holds what is passed on. Raises RuntimeError when one does not come."""
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
        """Replace `values` by those of rank 0; returns when that is done."""
        self._group.broadcast(values, 0).wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
