"""Process groups of gloo share one device, and with it one thread.

Torch gives each group a device of its own, whose thread wakes a hundred times per second for as long as the group
exists. Megatron forms forty groups per rank and vLLM a dozen per engine, most of which never communicate on their own.
"""

import os
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist

_Gloo: Any = dist.ProcessGroupGloo
_torch_init = _Gloo.__init__


def share_device() -> None:
    """Let groups that this process forms from now on share a device."""
    _Gloo.__init__ = _init


def _init(
    group: dist.ProcessGroupGloo, store: Any, rank: int, size: int, timeout: timedelta = dist.default_pg_timeout
) -> None:
    options = _Gloo._Options()
    options._devices = [_device(os.getpid())]
    options._timeout = timeout
    _torch_init(group, store, rank, size, options)


@cache
def _device(process_id: int) -> Any:
    """A fork has the thread of no device of its parent, and needs one of its own."""
    return _Gloo.create_default_device()
