"""Groups in which a trainer sends to engines elsewhere: all members meet first, and a lost one breaks the group."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from benchmarks.measured_process import free_port
from ray.exceptions import RayTaskError
from torch._C._distributed_c10d import TCPStore

from longshore_runtime.backends import broadcast
from longshore_runtime.backends.broadcast import Broadcast
from longshore_runtime.trainer.failures import lost_peer
from longshore_runtime.weights.shared import BroadcastGroup

CPU = torch.device("cpu")
BUCKET = torch.ones(1 << 26, dtype=torch.uint8)
"""More than the buffers of a connection hold."""


def alone(limit_s: float = 60.0, size: int = 1) -> BroadcastGroup:
    """A group of which this process is the first member."""
    return BroadcastGroup("127.0.0.1", free_port(), size, limit_s=limit_s)


def test_a_member_that_does_not_come_is_an_error_of_communication() -> None:
    with pytest.raises(dist.DistError, match="member/1"):
        Broadcast(alone(limit_s=0.2, size=2), 0, CPU)


class Leaves(Exception):
    """A member is gone."""


class LeftStore(dist.Store):
    """A store whose other member leaves as soon as the first one can know its address."""

    def __init__(self, *args: Any, is_master: bool, **kwargs: Any) -> None:
        super().__init__()
        self._store = TCPStore(*args, is_master=is_master, **kwargs)
        self._leaves = not is_master

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)
        if self._leaves and not key.startswith("member/"):
            raise Leaves

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._store.wait(keys, timeout)


def leaves_while_they_connect(channel: BroadcastGroup) -> None:
    with pytest.raises(Leaves):
        Broadcast(channel, 1, CPU)


def leaves_before_the_first_bucket(channel: BroadcastGroup) -> None:
    Broadcast(channel, 1, CPU)


def leaves_after_a_bucket(channel: BroadcastGroup) -> None:
    Broadcast(channel, 1, CPU).run(torch.zeros_like(BUCKET))


@pytest.mark.parametrize(
    ("member", "store"),
    [
        (leaves_while_they_connect, LeftStore),
        (leaves_before_the_first_bucket, TCPStore),
        (leaves_after_a_bucket, TCPStore),
    ],
)
def test_a_member_that_is_lost_at_any_moment_is_a_lost_peer(
    member: Callable[[BroadcastGroup], None], store: type[dist.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "TCPStore", store)
    channel = alone(limit_s=10.0, size=2)
    with ThreadPoolExecutor() as threads:
        other = threads.submit(member, channel)
        with pytest.raises(RuntimeError) as lost:
            group = Broadcast(channel, 0, CPU)
            for _ in range(2):
                group.run(BUCKET)
                other.result()
        other.result()
    assert lost_peer(RayTaskError("join_engines", "traceback", lost.value)), str(lost.value)


class Gloo:
    """Time limits of a group."""

    def __init__(self, store: Any, rank: int, size: int, limit: timedelta) -> None:
        self.limits_s = [limit.total_seconds()]

    def _set_default_timeout(self, limit: timedelta) -> None:
        self.limits_s.append(limit.total_seconds())


def test_gloo_has_a_fifth_of_its_limit_until_it_has_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gloo tries to connect for five times its limit."""
    monkeypatch.setattr(dist, "ProcessGroupGloo", Gloo)
    assert Broadcast(alone(limit_s=10.0), 0, CPU)._group.limits_s == [2.0, 10.0]


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
