"""Process groups of a rank on CPUs."""

import gc
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from longshore_runtime.backends import torch_world
from longshore_runtime.backends.gloo_device import share_device
from longshore_runtime.backends.world import World
from tests.contract.trainers.ranks import Ranks, kept_ranks


def has_ipv6() -> bool:
    """Whether something can listen at ::1."""
    try:
        with socket.socket(socket.AF_INET6) as listener:
            listener.bind(("::1", 0))
    except OSError:
        return False
    return True


NUM_GROUPS = 10
WORKERS_PER_GROUP = 2


def sums_and_threads(world: World) -> tuple[list[float], int, int]:
    """What each group adds up, how many threads the groups add, and how many are left once half of them are gone."""
    torch_world.join(world, torch.device("cpu"))
    before = num_threads()
    groups = [dist.new_group(list(range(world.size))) for _ in range(NUM_GROUPS)]
    sums = [add_up(world, group) for group in groups]
    among_all = num_threads() - before
    for group in groups[: NUM_GROUPS // 2]:
        dist.destroy_process_group(group)
    del group, groups[: NUM_GROUPS // 2]
    gc.collect()
    sums += [add_up(world, group) for group in groups]
    return sums, among_all, num_threads() - before


def add_up(world: World, group: dist.ProcessGroup | None) -> float:
    value = torch.tensor([float(world.rank + 1)])
    dist.all_reduce(value, group=group)
    return value.item()


def num_threads() -> int:
    return len(list(Path(f"/proc/{os.getpid()}/task").iterdir()))


def test_groups_share_the_thread_that_waits_for_the_others() -> None:
    for sums, added, left in kept_ranks(2).run(sums_and_threads):
        assert sums == [3.0] * (NUM_GROUPS + NUM_GROUPS // 2)
        assert added == WORKERS_PER_GROUP * NUM_GROUPS
        assert left == added / 2, "groups go alone"


def sum_over(world: World, host: str) -> float:
    torch_world.join(replace(world, host=host), torch.device("cpu"))
    return add_up(world, None)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 at its loopback interface")
def test_ranks_meet_at_an_address_of_ipv6() -> None:
    ranks = Ranks(2)
    try:
        assert ranks.run(sum_over, "::1") == [3.0, 3.0]
    finally:
        ranks.stop()


def mistake_of_a_group_by(world: World, interface: str) -> str:
    """Why two groups cannot be formed over this network interface; empty if they can."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    share_device()
    try:
        for _ in range(2):
            dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("interface", "mistake"), [("lo", ""), ("absent0", "absent0")])
def test_the_network_interface_is_the_one_that_the_environment_names(interface: str, mistake: str) -> None:
    ranks = Ranks(1)
    try:
        (found,) = ranks.run(mistake_of_a_group_by, interface)
    finally:
        ranks.stop()
    assert mistake in found and bool(mistake) == bool(found)
