"""Process groups of gloo share one device, and with it one thread.

Torch gives each group a device of its own, whose thread wakes a hundred times per second for as long as the group
exists. Megatron forms forty groups per rank and vLLM a dozen per engine, most of which never communicate on their own.
"""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_Gloo: Any = dist.ProcessGroupGloo
_torch_init = _Gloo.__init__
_devices: dict[int, list[Any]] = {}
"""By process: a fork has the threads of none of its parent's devices."""


def share_device() -> None:
    """Let groups that this process forms from now on share a device."""
    _Gloo.__init__ = _init


def _init(
    group: dist.ProcessGroupGloo, store: Any, rank: int, size: int, timeout: timedelta = dist.default_pg_timeout
) -> None:
    """Let torch choose the devices of the first group, by GLOO_SOCKET_IFNAME or the host's name; others have these."""
    if (devices := _devices.get(os.getpid())) is None:
        _torch_init(group, store, rank, size, timeout)
        made: Any = group.options
        _devices[os.getpid()] = made._devices
        return
    options = _Gloo._Options()
    options._devices, options._threads, options._timeout = devices, 2 * len(devices), timeout
    _torch_init(group, store, rank, size, options)
