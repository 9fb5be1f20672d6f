"""Ranks that compute together get calls in one order, whichever threads make them."""

import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from longshore_runtime.clock import SystemClock
from longshore_runtime.trainer import group as module
from longshore_runtime.trainer.group import TrainerGroup

NUM_RANKS = 4


class Ranks:
    """Note their calls; a call takes a moment to submit."""

    num_replicas = 1

    def __init__(self) -> None:
        self.calls: defaultdict[int, list[str]] = defaultdict(list)
        self.actors = [Rank(self, number) for number in range(NUM_RANKS)]
        self.begun = threading.Event()

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
            time.sleep(0.005)  # Long enough for another thread to come between; the test does not depend on it.
        return object()


def test_an_engine_that_joins_asks_all_ranks_for_weights_before_or_after_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.ray, "put", lambda value: value)
    ranks = Ranks()
    trainers = TrainerGroup.__new__(TrainerGroup)
    vars(trainers).update(_replicas=ranks, _world=ranks, num_given=0, _clock=SystemClock(), _in_order=threading.Lock())
    joins = threading.Thread(target=lambda: ranks.begun.wait() and trainers.begin_copies(3))
    joins.start()
    trainers.give(trainers.begin(), 0, [])
    joins.join()
    assert {tuple(calls) for calls in ranks.calls.values()} == {("accumulate", "weights")}
