"""Send bytes from a trainer rank to engine workers in other pods: by NCCL on GPUs, otherwise by gloo."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from longshore_runtime.weights.shared import BroadcastGroup

_BLOCKING_WAIT: Final = "TORCH_NCCL_BLOCKING_WAIT"
_GLOO_CONNECTS_FOR: Final = 5
"""Multiple of its limit for which gloo waits for a member that is lost after connecting has begun."""


class Broadcast:
    """One member of a group, which is independent of other groups of its process. A lost member breaks the group."""

    def __init__(self, channel: BroadcastGroup, rank: int, device: torch.device) -> None:
        """Meet the other members; values are on `device`. Raises RuntimeError if one does not come."""
        limit = timedelta(seconds=channel.limit_s)
        store = TCPStore(
            channel.host, channel.port, channel.size, is_master=rank == 0, timeout=limit, wait_for_workers=False
        )
        # NCCL would wait without a limit for one that does not come.
        store.set(f"member/{rank}", "")
        store.wait([f"member/{other}" for other in range(channel.size)], limit)
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            with _waits_that_raise():
                self._group: Any = dist.ProcessGroupNCCL(store, rank, channel.size, options)
            # Groups know a device by its number, which a trainer's lacks.
            number = torch.cuda.current_device() if device.index is None else device.index
            self._group.eager_connect_single_device(torch.device("cuda", number))
        else:
            self._group = dist.ProcessGroupGloo(store, rank, channel.size, limit / _GLOO_CONNECTS_FOR)
            self._group._set_default_timeout(limit)
        self._store = store
        self._device = device

    def run(self, values: Tensor) -> None:
        """Replace `values` by those of rank 0; return when this is done."""
        self._group.broadcast(values, 0).wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@contextlib.contextmanager
def _waits_that_raise() -> Iterator[None]:
    """Let groups of NCCL that are made meanwhile raise when a member is lost; otherwise torch ends the process.

    Groups read the variable when they are made. That of a trainer's own ranks keeps torch's way.
    """
    before = os.environ.get(_BLOCKING_WAIT)
    os.environ[_BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        os.environ.pop(_BLOCKING_WAIT)
        if before is not None:
            os.environ[_BLOCKING_WAIT] = before
