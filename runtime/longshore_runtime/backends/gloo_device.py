"""Process groups of gloo share one device, and with it one thread.

Torch gives each group a device of its own, whose thread wakes a hundred times per second for as long as the group
exists. Megatron forms forty groups per rank and vLLM a dozen per engine, most of which are never used.
"""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_Gloo: Any = dist.ProcessGroupGloo
_torch_init = _Gloo.__init__
_devices: dict[int, list[Any]] = {}
"""Devices by process number, because a fork has none of the threads of its parent's devices.

A fork must end by `os._exit`, as those of multiprocessing do: otherwise it would wait for these threads.
"""


def share_device() -> None:
    """Let groups that this process forms from now on share a device."""
    _Gloo.__init__ = _init


def _init(
    group: dist.ProcessGroupGloo,
    store: Any,
    rank: int,
    size: int,
    timeout: Any = dist.default_pg_timeout,
    options: Any = None,
) -> None:
    """Let all process groups share the devices of the first one.

    torch chooses these, by GLOO_SOCKET_IFNAME or the host's name. Groups whose options name devices keep them.
    """
    if options is not None or not isinstance(timeout, timedelta):
        _torch_init(group, store, rank, size, options or timeout)
        return
    if (devices := _devices.get(os.getpid())) is None:
        _torch_init(group, store, rank, size, timeout)
        made: Any = group.options
        _devices[os.getpid()] = made._devices
        return
    shared = _Gloo._Options()
    shared._devices, shared._threads, shared._timeout = devices, 2 * len(devices), timeout
    _torch_init(group, store, rank, size, shared)
