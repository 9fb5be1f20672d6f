"""The replicas of the fake trainer add up their values, and notice the loss of one as others do."""

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from benchmarks.measured_process import free_port
from ray.exceptions import RayTaskError

from longshore_runtime.backends import fake_world
from longshore_runtime.backends.fake_world import FakeWorld
from longshore_runtime.backends.world import World
from longshore_runtime.trainer.failures import lost_peer

LIMIT_S = 60.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@pytest.fixture
def replicas() -> Iterator[tuple[FakeWorld, FakeWorld]]:
    port = free_port()
    with ThreadPoolExecutor(2) as threads:
        met = [threads.submit(FakeWorld, World(rank, 2, "127.0.0.1", port)) for rank in range(2)]
        first, second = (world.result(LIMIT_S) for world in met)
    yield first, second
    for world in (first, second):
        world.close()


def test_every_replica_gets_the_sum(replicas: tuple[FakeWorld, FakeWorld]) -> None:
    with ThreadPoolExecutor(2) as threads:
        sums = [threads.submit(world.add_up, [rank, 1]) for rank, world in enumerate(replicas)]
        assert [one.result(LIMIT_S) for one in sums] == [[1, 2]] * 2


@pytest.mark.parametrize("survivor", [0, 1])
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_a_replica_that_is_gone_is_a_lost_peer(
    replicas: tuple[FakeWorld, FakeWorld], survivor: int, is_reset: bool
) -> None:
    """A process that is killed with data that it has not read resets its connections."""
    lost = replicas[1 - survivor]
    if is_reset:
        for connection in lost._sockets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    lost.close()
    with pytest.raises(RuntimeError) as raised:
        for _ in range(2):  # What is sent first may still find room.
            replicas[survivor].add_up([1])
    assert lost_peer(RayTaskError("add", "traceback", raised.value)) is not None, str(raised.value)


def test_a_replica_that_does_not_come_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_world, "_MEETING_S", 0.1)
    for rank in range(2):
        with pytest.raises(RuntimeError) as raised:
            FakeWorld(World(rank, 2, "127.0.0.1", free_port()))
        assert lost_peer(RayTaskError("join", "traceback", raised.value)) is not None, str(raised.value)
