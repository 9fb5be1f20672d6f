"""Ranks that compute together get calls in one order, whichever threads make them."""

import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.clock import SystemClock
from longshore_runtime.trainer.group import TrainerGroup

NUM_RANKS = 4


LIMIT_S = 60.0


class Lock:
    """Tells that the second thread has come, and has to wait."""

    def __init__(self, has_come: threading.Event) -> None:
        self._lock, self._has_come = threading.Lock(), has_come

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._has_come.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Ranks:
    """Note their calls. Those of the first thread wait until the second one has come as far as it can."""

    num_replicas = 1

    def __init__(self) -> None:
        self.calls: defaultdict[int, list[str]] = defaultdict(list)
        self.actors = [Rank(self, number) for number in range(NUM_RANKS)]
        self.begun, self.other_has_come = threading.Event(), threading.Event()

    def ranks(self, replica: int) -> range:
        return range(NUM_RANKS)


class Rank:
    def __init__(self, all_ranks: Ranks, number: int) -> None:
        self._all, self._number = all_ranks, number

    def __getattr__(self, name: str) -> Any:
        return Call(self._all, self._number, name)


class Call:
    def __init__(self, all_ranks: Ranks, rank: int, name: str) -> None:
        self._all, self._rank, self._name = all_ranks, rank, name

    def remote(self, *_: Any) -> object:
        self._all.calls[self._rank].append(self._name)
        if self._name == "accumulate":
            self._all.begun.set()
            assert self._all.other_has_come.wait(LIMIT_S)
        elif self._rank == NUM_RANKS - 1:
            self._all.other_has_come.set()  # Nothing has kept it from calling all ranks.
        return object()


def test_an_engine_that_joins_asks_all_ranks_for_weights_before_or_after_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "put", lambda value: value)
    ranks = Ranks()
    trainers = TrainerGroup.__new__(TrainerGroup)
    vars(trainers).update(
        _replicas=ranks,
        _world=ranks,
        _spec=SimpleNamespace(sizes=ParallelSizes(tensor=NUM_RANKS)),
        num_given=0,
        _clock=SystemClock(),
        _in_order=Lock(ranks.other_has_come),
    )
    joins = threading.Thread(target=lambda: ranks.begun.wait() and trainers.begin_copies(3))
    joins.start()
    trainers.give(trainers.begin(), 0, [])
    joins.join()
    assert {tuple(calls) for calls in ranks.calls.values()} == {("accumulate", "weights")}
