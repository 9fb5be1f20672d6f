"""The processes below this one, and what they have in memory."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore_runtime.sandbox.usage import ProcessTree

_FILLED_BYTES = 32 << 20


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A child and its child, which has filled some memory."""
    reported, tell = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        kept = b"" if grandchild else bytearray(b"x") * _FILLED_BYTES
        os.write(tell, b"%d " % grandchild if grandchild else bytes(kept[:0]) + b"0 ")
        while True:
            signal.pause()
    said: list[int] = []
    while len(said) < 2:
        said += map(int, os.read(reported, 64).split())
    yield child, max(said)
    for process in (max(said), child):
        os.kill(process, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reported)
    os.close(tell)


def test_a_tree_is_the_same_from_either_end(family: tuple[int, int]) -> None:
    tree = ProcessTree()
    assert all(map(tree.shows, family))
    assert set(family) <= tree.descendants()
    assert set(family) <= tree.all_descendants()


def test_what_a_process_has_is_counted_beyond_what_it_shares(family: tuple[int, int]) -> None:
    tree = ProcessTree()
    own_bytes = tree.resident_bytes(os.getpid())
    assert _FILLED_BYTES <= tree.resident_bytes(family[1]) < _FILLED_BYTES + own_bytes
    assert tree.usage(own_bytes, 0).num_bytes < tree.usage(0, 0).num_bytes


def test_threads_and_descriptors_are_counted(family: tuple[int, int]) -> None:
    tree = ProcessTree()
    assert tree.usage(0, 0).num_threads >= 2
    assert tree.usage(0, 0).num_threads == tree.usage(0, 0, {family[0]}).num_threads + 1
    num_descriptors = len(list(Path(f"/proc/{family[0]}/fd").iterdir()))
    apart = tree.descendants() - {family[0]}
    grown = tree.usage(0, 1 << 30, apart).num_bytes - tree.usage(0, 0, apart).num_bytes
    assert grown >> 30 == max(0, num_descriptors - 8)


def test_a_process_that_has_ended_has_nothing() -> None:
    tree = ProcessTree()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert tree.resident_bytes(child) == 0
    os.waitpid(child, 0)
    assert not tree.shows(child)
    with pytest.raises(FileNotFoundError):
        tree.resident_bytes(child)
    assert child not in tree.descendants()
