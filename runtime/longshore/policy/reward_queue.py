"""Which response is scored next, by what the round waits for (RollPacker, section 4.3: rewards overlap the rollout).

A response can be scored as soon as it has finished, long before its group is served. Such early work is done when
nobody waits for anything else; what a served group waits for goes first, in the order in which groups were served.
Each reward function has a budget of workers, so that a slow one never holds up the others.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId

MAX_EARLY_PER_WORKER: Final = 8
"""Responses that may wait to be scored early, per worker; further ones are scored when their group is served. More
would only fill memory: a worker that is so far behind the rollout is not waiting for work."""


@dataclass(frozen=True)
class ScoreTask:
    """One response under one reward function."""

    round: int
    """Sequence number of the round: a deferred draw comes back under its old name."""
    response: ResponseId
    function: str


RETRY_WAIT_S: Final = 0.5
"""Before the first retry of a task; doubles each time, so that what is restarting finds time to."""
MAX_RETRY_WAIT_S: Final = 30.0


@dataclass(frozen=True)
class Fault:
    """What becomes of a task after a fault of the infrastructure."""

    retries: bool
    """Whether the task is to be submitted again, `wait_s` from now."""
    num_faults: int

    @property
    def wait_s(self) -> float:
        """Time until the next attempt."""
        return min(RETRY_WAIT_S * 2.0 ** (self.num_faults - 1), MAX_RETRY_WAIT_S)


@dataclass
class _Entry:
    task: ScoreTask
    queued_s: float
    is_needed: bool


class RewardQueue:
    """Tasks in, tasks out, as workers are free. Pure: time is an argument."""

    def __init__(self, num_workers: int, budgets: Mapping[str, int], max_retries: Mapping[str, int]) -> None:
        """`budgets`: workers that a function may hold at once; `max_retries`: by function."""
        self._num_workers = num_workers
        self._budgets = budgets
        self._max_retries = max_retries
        self._early: deque[ScoreTask] = deque()
        self._needed: deque[ScoreTask] = deque()
        self._entries: dict[ScoreTask, _Entry] = {}
        """Tasks that wait."""
        self._running: dict[ScoreTask, float] = {}
        self._num_running: Counter[str] = Counter()
        self._num_early = 0
        self._num_faults: Counter[ScoreTask] = Counter()
        self._needed_draws: set[Draw] = set()

    def resize(self, num_workers: int) -> None:
        """Workers joined or left."""
        self._num_workers = num_workers

    def submit(self, tasks: Iterable[ScoreTask], now_s: float) -> None:
        """Responses finished. Those that nobody waits for yet are dropped when too many wait already."""
        for task in tasks:
            if task in self._entries or task in self._running:
                continue
            is_needed = task.response.draw in self._needed_draws
            if not is_needed and self._num_early >= MAX_EARLY_PER_WORKER * max(1, self._num_workers):
                continue
            self._add(task, now_s, is_needed=is_needed)

    def need(self, tasks: Iterable[ScoreTask], now_s: float) -> None:
        """A group is served: its scores are waited for, unless they are there or on their way."""
        for task in tasks:
            self._needed_draws.add(task.response.draw)
            entry = self._entries.get(task)
            if entry is not None and not entry.is_needed:
                entry.is_needed = True
                self._num_early -= 1
                self._needed.append(task)
            elif entry is None and task not in self._running:
                self._add(task, now_s, is_needed=True)

    def drop(self, draws: Iterable[Draw]) -> None:
        """Nobody wants the scores of these draws any longer; what runs ends by itself."""
        gone = set(draws)
        self._needed_draws -= gone
        for task in [task for task in self._entries if task.response.draw in gone]:
            self._num_early -= not self._entries.pop(task).is_needed

    def clear(self) -> None:
        """A round is over: nobody wants what still waits; what runs ends by itself."""
        self._early.clear()
        self._needed.clear()
        self._entries.clear()
        self._num_early = 0
        self._num_faults.clear()
        self._needed_draws.clear()

    def start(self, now_s: float) -> tuple[ScoreTask, ...]:
        """Tasks for the workers that are free."""
        started: list[ScoreTask] = []
        for queue in (self._needed, self._early):
            held: list[ScoreTask] = []
            while queue and len(self._running) < self._num_workers:
                task = queue.popleft()
                entry = self._entries.get(task)
                if entry is None or (queue is self._early and entry.is_needed):
                    continue
                if self._num_running[task.function] >= self._budgets.get(task.function, self._num_workers):
                    held.append(task)
                    continue
                del self._entries[task]
                self._num_early -= not entry.is_needed
                self._running[task] = now_s
                self._num_running[task.function] += 1
                started.append(task)
            queue.extendleft(reversed(held))
        return tuple(started)

    def finished(self, task: ScoreTask) -> None:
        """A worker answered."""
        self._end(task)
        del self._num_faults[task]

    def faulted(self, task: ScoreTask) -> Fault:
        """A worker, or what it depends on, broke: up to its limit, the caller submits the task again."""
        self._end(task)
        self._num_faults[task] += 1
        return Fault(self._num_faults[task] <= self._max_retries.get(task.function, 0), self._num_faults[task])

    @property
    def depth(self) -> int:
        """Tasks that wait."""
        return len(self._entries)

    @property
    def num_running(self) -> int:
        """Tasks that workers have."""
        return len(self._running)

    def oldest_wait_s(self, now_s: float) -> float:
        """Longest time that a needed task has waited for a worker."""
        return max((now_s - entry.queued_s for entry in self._entries.values() if entry.is_needed), default=0.0)

    def _add(self, task: ScoreTask, now_s: float, *, is_needed: bool) -> None:
        self._entries[task] = _Entry(task, now_s, is_needed)
        (self._needed if is_needed else self._early).append(task)
        self._num_early += not is_needed

    def _end(self, task: ScoreTask) -> None:
        del self._running[task]
        self._num_running[task.function] -= 1
