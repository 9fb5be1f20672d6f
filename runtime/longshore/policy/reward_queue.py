"""Which response is scored next, by what the round waits for (RollPacker, section 4.3: rewards overlap the rollout).

A response can be scored as soon as it has finished, long before its group is served. Such early work is done when
nobody waits for anything else; what a served group waits for goes first, in the order in which groups were served.
Each reward function has a budget, so that a slow one never holds up the others.

A worker is given calls: one response each, or several where a call costs about as much for several as for one.
"""

import heapq
import itertools
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId

MAX_EARLY_PER_WORKER: Final = 8
"""Responses that may wait to be scored early, per worker; further ones are scored when their group is served. More
would only fill memory: a worker that is so far behind the rollout is not waiting for work."""

MAX_RESPONSES_PER_CALL: Final = 32
"""Largest number of responses in a call of functions that score several at once.

A call ends with its last response: more would make the first ones wait.
"""


@dataclass(frozen=True)
class ScoreTask:
    """One response under one reward function."""

    round: int
    """Sequence number of the round: a deferred draw comes back under its old name."""
    response: ResponseId
    function: str


RETRY_WAIT_S: Final = 0.5
"""Seconds before the first retry of a task.

They double each time, so that what is restarting finds time to.
"""
MAX_RETRY_WAIT_S: Final = 30.0


@dataclass(frozen=True)
class Fault:
    """Fate of a task after a fault of the infrastructure."""

    retries: bool
    """Whether the task is to be submitted again, `wait_s` from now."""
    num_faults: int

    @property
    def wait_s(self) -> float:
        """Time until the next attempt."""
        return min(RETRY_WAIT_S * 2.0 ** (self.num_faults - 1), MAX_RETRY_WAIT_S)


@dataclass
class _ScoreCall:
    num_open: int
    """Tasks that are not answered yet."""


@dataclass(frozen=True)
class _Place:
    """Place in which a task waits."""

    number: int
    """Grows with every task that enters."""
    since_s: float
    is_needed: bool
    is_faulted: bool


@dataclass
class _Line:
    """Tasks of one function that wait, in order, with their numbers. Heads of an OrderedDict cost nothing to find."""

    sound: "OrderedDict[ScoreTask, int]" = field(default_factory=OrderedDict)
    faulted: "OrderedDict[ScoreTask, int]" = field(default_factory=OrderedDict)
    """Tasks that met a fault before."""

    def first(self) -> tuple[int, ScoreTask] | None:
        """Return the first of all with its number."""
        heads = [
            (number, task) for part in (self.sound, self.faulted) for task, number in itertools.islice(part.items(), 1)
        ]
        return min(heads, key=lambda head: head[0], default=None)


class RewardQueue:
    """Tasks in, calls out, as workers are free. Pure: time is an argument.

    An event costs no more than the logarithm of the number of tasks that wait.
    """

    def __init__(
        self,
        num_workers: int,
        budgets: Mapping[str, int],
        max_retries: Mapping[str, int],
        max_per_call: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Set limits by function; `budgets`: responses scored at once; `max_per_call`: responses of a call, or 1."""
        self._num_workers = num_workers
        self._budgets = budgets
        self._max_retries = max_retries
        self._max_per_call = max_per_call
        self._max_early_per_worker = max([MAX_EARLY_PER_WORKER, *max_per_call.values()])
        self._waiting: dict[ScoreTask, _Place] = {}
        self._by_draw: defaultdict[Draw, dict[ScoreTask, None]] = defaultdict(dict)
        """The same, by draw."""
        self._needed: defaultdict[str, _Line] = defaultdict(_Line)
        """Tasks that wait and that a group waits for, by function."""
        self._early: defaultdict[str, _Line] = defaultdict(_Line)
        """Tasks that wait and that nobody waits for."""
        self._num_early = 0
        self._since: list[tuple[float, int, ScoreTask]] = []
        """A heap of needed tasks by the time since when they wait; those that have left are passed over."""
        self._numbers = itertools.count()
        self._running: dict[ScoreTask, _ScoreCall] = {}
        self._num_running: Counter[str] = Counter()
        self._num_calls = 0
        self._num_faults: Counter[ScoreTask] = Counter()
        self._needed_draws: set[Draw] = set()

    def resize(self, num_workers: int) -> None:
        """Note that workers joined or left."""
        self._num_workers = num_workers

    def submit(self, tasks: Iterable[ScoreTask], now_s: float) -> None:
        """Queue responses that finished; those that nobody waits for yet are dropped when too many wait already."""
        for task in tasks:
            if task in self._waiting or task in self._running:
                continue
            if task.response.draw in self._needed_draws:
                self._enter(task, now_s, is_needed=True)
            elif self._num_early < self._max_early_per_worker * max(1, self._num_workers):
                self._enter(task, now_s, is_needed=False)

    def need(self, tasks: Iterable[ScoreTask], now_s: float) -> None:
        """Note that a group is served: its scores are waited for, unless they are there or on their way."""
        for task in tasks:
            self._needed_draws.add(task.response.draw)
            place = self._waiting.get(task)
            if task in self._running or (place is not None and place.is_needed):
                continue
            since_s = now_s if place is None else place.since_s
            if place is not None:
                self._leave(task)
            self._enter(task, since_s, is_needed=True)

    def drop(self, draws: Iterable[Draw]) -> None:
        """Drop the tasks of draws whose scores are not needed any more; what runs ends by itself."""
        for draw in draws:
            self._needed_draws.discard(draw)
            for task in list(self._by_draw.get(draw, ())):
                self._leave(task)

    def clear(self) -> None:
        """Note that a round is over: nobody wants what still waits; what runs ends by itself."""
        for waiting in (self._waiting, self._by_draw, self._needed, self._early, self._since):
            waiting.clear()
        self._num_early = 0
        self._num_faults.clear()
        self._needed_draws.clear()

    def start(self) -> tuple[tuple[ScoreTask, ...], ...]:
        """Return calls for the workers that are free; all tasks of a call are of one function."""
        calls: list[tuple[ScoreTask, ...]] = []
        while self._num_calls < self._num_workers and (tasks := self._next_call()):
            calls.append(tasks)
            call = _ScoreCall(len(tasks))
            self._num_calls += 1
            for task in tasks:
                self._leave(task)
                self._running[task] = call
                self._num_running[task.function] += 1
        return tuple(calls)

    def finished(self, task: ScoreTask) -> None:
        """Note that a worker answered."""
        self._end(task)
        del self._num_faults[task]

    def faulted(self, task: ScoreTask) -> Fault:
        """Return a worker, or what it depends on, broke: up to its limit, the caller submits the task again."""
        self._end(task)
        self._num_faults[task] += 1
        return Fault(self._num_faults[task] <= self._max_retries.get(task.function, 0), self._num_faults[task])

    @property
    def depth(self) -> int:
        """Tasks that wait."""
        return len(self._waiting)

    @property
    def num_calls(self) -> int:
        """Workers that have something to do: a call ends with the last of its tasks."""
        return self._num_calls

    def oldest_wait_s(self, now_s: float) -> float:
        """Return the longest time that a needed task has waited for a worker."""
        while self._since:
            since_s, number, task = self._since[0]
            place = self._waiting.get(task)
            if place is not None and place.number == number:
                return now_s - since_s
            heapq.heappop(self._since)
        return 0.0

    def _next_call(self) -> tuple[ScoreTask, ...]:
        """Return what waits first and may be scored, with its share of what waits for the same function.

        Workers that are free share what waits. A task that met a fault goes alone: should it be its own doing, no
        other suffers from it again.
        """
        first = self._first(self._needed) or self._first(self._early)
        if first is None:
            return ()
        most = min(self._max_per_call.get(first.function, 1), self._room(first.function))
        if most == 1 or self._waiting[first].is_faulted:
            return (first,)
        alike = [lines[first.function].sound for lines in (self._needed, self._early)]
        share = math.ceil(sum(map(len, alike)) / (self._num_workers - self._num_calls))
        return tuple(itertools.islice(itertools.chain(*alike), min(share, most)))

    def _first(self, lines: Mapping[str, _Line]) -> ScoreTask | None:
        """Return what waits first among the functions that may score more."""
        heads = [head for function, line in lines.items() if self._room(function) > 0 and (head := line.first())]
        return min(heads, key=lambda head: head[0])[1] if heads else None

    def _enter(self, task: ScoreTask, since_s: float, *, is_needed: bool) -> None:
        place = _Place(next(self._numbers), since_s, is_needed, is_faulted=self._num_faults[task] > 0)
        self._waiting[task] = place
        self._by_draw[task.response.draw][task] = None
        self._part(task, place)[task] = place.number
        if is_needed:
            heapq.heappush(self._since, (since_s, place.number, task))
        else:
            self._num_early += 1

    def _leave(self, task: ScoreTask) -> None:
        place = self._waiting.pop(task)
        del self._part(task, place)[task]
        self._num_early -= not place.is_needed
        of_draw = self._by_draw[task.response.draw]
        del of_draw[task]
        if not of_draw:
            del self._by_draw[task.response.draw]

    def _part(self, task: ScoreTask, place: _Place) -> "OrderedDict[ScoreTask, int]":
        line = (self._needed if place.is_needed else self._early)[task.function]
        return line.faulted if place.is_faulted else line.sound

    def _room(self, function: str) -> int:
        """Return the responses that the function may score alongside those that it scores."""
        return self._budgets.get(function, sys.maxsize) - self._num_running[function]

    def _end(self, task: ScoreTask) -> None:
        call = self._running.pop(task)
        self._num_running[task.function] -= 1
        call.num_open -= 1
        self._num_calls -= call.num_open == 0
