"""Groups in which a trainer sends to engines elsewhere: all members meet first, and a lost one breaks the group."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from benchmarks.measured_process import free_port

from longshore_runtime.backends.broadcast import Broadcast
from longshore_runtime.weights.shared import BroadcastGroup


def alone(limit_s: float = 60.0, size: int = 1) -> BroadcastGroup:
    """A group of which this process is the first member."""
    return BroadcastGroup("127.0.0.1", free_port(), size, limit_s=limit_s)


def test_a_member_that_does_not_come_is_an_error_of_communication() -> None:
    with pytest.raises(dist.DistError, match="member/1"):
        Broadcast(alone(limit_s=0.2, size=2), 0, torch.device("cpu"))


class Nccl:
    """What a group of NCCL is made of."""

    class Options:
        _timeout: Any = None

    made: list["Nccl"]

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.waits_raise = os.environ.get("TORCH_NCCL_BLOCKING_WAIT")
        self.limit_s = options._timeout.total_seconds()
        self.device = torch.device("cpu")
        Nccl.made.append(self)

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.device = device


@pytest.mark.parametrize("before", [None, "0"])
def test_a_lost_member_ends_a_wait_of_nccl_and_not_the_process(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch ends the process of a group that does not wait itself; the group reads how when it is made."""
    Nccl.made = []
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    if before is not None:
        monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", before)
    for device in (torch.device("cuda"), torch.device("cuda", 3)):
        Broadcast(alone(limit_s=7.0), 0, device)
    assert [(one.waits_raise, one.limit_s, str(one.device)) for one in Nccl.made] == [
        ("1", 7.0, "cuda:0"),
        ("1", 7.0, "cuda:3"),
    ]
    assert os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == before
