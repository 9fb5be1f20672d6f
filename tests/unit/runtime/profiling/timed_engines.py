"""Engines without a model, threads or real time.

They step while the driver waits for an event, which takes a virtual clock further.
"""

import queue
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longshore.rounds.messages import EngineLost
from longshore_runtime.backends.engine_protocol import Completion, EngineStats, Request, load_weights
from longshore_runtime.backends.fake_engine import FakeEngine, FakeEngineOptions
from longshore_runtime.profiling.engine_probe import EngineProbe
from longshore_runtime.profiling.staircase import EngineLimits
from longshore_runtime.profiling.synthetic import Synthetic
from longshore_runtime.rollout.events import EngineOutput, Event

LIMITS = EngineLimits(max_num_seqs=8, max_context_tokens=256, kv_capacity_tokens=4096)


class VirtualClock:
    """Goes on where somebody waits."""

    def __init__(self) -> None:
        self.reading_s = 0.0

    def now_s(self) -> float:
        return self.reading_s


@dataclass
class TimedEngines:
    """A pool and its events in one: all engines step together, but for those that are stuck."""

    num_engines: int = 2
    step_s: float = 0.125
    clock: VirtualClock = field(default_factory=VirtualClock)
    stuck: set[int] = field(default_factory=set)
    stuck_once_stopped: set[int] = field(default_factory=set)
    """These are stuck from the first stop on."""
    lost: set[int] = field(default_factory=set)
    """These are lost at the next step."""
    replaced: list[int] = field(default_factory=list)
    num_added: int = 0

    def __post_init__(self) -> None:
        self._pending: deque[Event] = deque()
        options = FakeEngineOptions(max_num_seqs=LIMITS.max_num_seqs)
        self._engines = {number: FakeEngine(options, self.clock) for number in range(self.num_engines)}
        for engine in self._engines.values():
            load_weights(engine, [], policy_version=0)

    def serving(self) -> Sequence[int]:
        return list(self._engines)

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        self.num_added += len(requests)
        self._engines[engine].add(requests)

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        self._report(engine, self._engines[engine].abort(request_ids))
        self.stuck |= self.stuck_once_stopped

    def stats(self) -> Mapping[int, EngineStats]:
        return {number: engine.stats() for number, engine in self._engines.items()}

    def is_gone(self, engine: int) -> bool:
        return engine not in self._engines

    def replace(self, engine: int) -> None:
        self.replaced.append(engine)

    def put(self, event: Event) -> None:
        self._pending.append(event)

    def get(self, timeout: float) -> Event:
        deadline_s = self.clock.reading_s + timeout
        while not self._pending:
            if self.clock.reading_s + self.step_s > deadline_s:
                self.clock.reading_s = deadline_s
                raise queue.Empty
            self.clock.reading_s += self.step_s
            self._step()
        return self._pending.popleft()

    @property
    def num_unfinished(self) -> int:
        return sum(stats.num_running + stats.num_waiting for stats in self.stats().values())

    def _step(self) -> None:
        while self.lost:
            number = self.lost.pop()
            del self._engines[number]
            self.put(EngineLost(number, "pod killed"))
        for number, engine in self._engines.items():
            if number not in self.stuck:
                self._report(number, engine.step())

    def _report(self, engine: int, completions: Sequence[Completion]) -> None:
        if completions:
            self.put(EngineOutput(engine, completions, self._engines[engine].stats()))


def probe(engines: TimedEngines) -> EngineProbe:
    """Probe of these engines, on their clock."""
    events: queue.SimpleQueue[Event] = engines  # type: ignore[assignment]
    return EngineProbe(engines, events, Synthetic(100, seed=0), engines.clock)
