"""Processes that form a world, kept for many tests: starting them costs far more than a tiny training run."""

import gc
import multiprocessing
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import tests.warm  # noqa: F401 - ranks are forks of a process that has imported the trainers
from longshore_runtime.backends.world import World


class Ranks:
    """`size` processes. Every call is a world of its own; a failed one ends them."""

    def __init__(self, size: int) -> None:
        """Start them."""
        context = multiprocessing.get_context("forkserver")
        pairs = [context.Pipe() for _ in range(size)]
        self._pipes = [ours for ours, _ in pairs]
        self._processes = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pairs]
        for process in self._processes:
            process.start()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(world, *arguments)` in all of them; results by rank."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        for rank, pipe in enumerate(self._pipes):
            pipe.send((function, World(rank, len(self._pipes), port=port), arguments))
        results: dict[int, Any] = {}
        while len(results) < len(self._pipes):
            for ready in wait([pipe for rank, pipe in enumerate(self._pipes) if rank not in results]):
                assert isinstance(ready, Connection)
                rank = self._pipes.index(ready)
                try:
                    succeeded, results[rank] = ready.recv()
                except EOFError:
                    succeeded, results[rank] = False, "killed"
                if not succeeded:
                    self.stop()  # The others may wait for this one for ever.
                    raise AssertionError(f"rank {rank}: {results[rank]}")
        return [results[rank] for rank in range(len(self._pipes))]

    @property
    def are_alive(self) -> bool:
        """Whether all of them run."""
        return all(process.is_alive() for process in self._processes)

    def stop(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.join()


_KEPT: dict[int, Ranks] = {}


def kept_ranks(size: int) -> Ranks:
    """Processes that serve one test after another."""
    if size in _KEPT and not _KEPT[size].are_alive:
        _KEPT.pop(size).stop()
    if size not in _KEPT:
        _KEPT[size] = Ranks(size)
    return _KEPT[size]


def stop_kept_ranks() -> None:
    """End all of them."""
    while _KEPT:
        _KEPT.popitem()[1].stop()


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        function, world, arguments = pipe.recv()
        gc.freeze()  # The collection after each test is about what the test has left.
        try:
            answer = (True, function(world, *arguments))
        except Exception:  # noqa: BLE001 - it is reported to the test
            answer = (False, traceback.format_exc())
        pipe.send(answer)
        leave_world()


def leave_world() -> None:
    """End the process groups of this process, each of which has two threads."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()  # Cycles hold process groups, whose threads would live on.
