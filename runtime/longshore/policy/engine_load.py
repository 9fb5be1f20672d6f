"""How many requests an engine is given at once, by what it bears: additive increase, multiplicative decrease.

Requests that no longer fit the KV cache are preempted and computed again, so that one too many costs more than one too
few. The limit grows by steps while the cache has room, at most once a second, and falls at once when it has none.
Engines tell their load with the responses that leave them; how often that is does not change how fast a limit grows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

GROW_BELOW_KV_USAGE: Final = 0.8
"""The limit grows up to this projected use of the KV cache. The rest is for responses that become longer."""
SHRINK_ABOVE_KV_USAGE: Final = 0.95
"""Beyond it the next few tokens preempt a request. Between the two the limit stays, so that it comes to rest."""
SHRINK_FACTOR: Final = 0.75
"""Share of the running requests that stay when they are too many.

It is less than GROW_BELOW_KV_USAGE, so that one step makes room in a full cache.
"""
GROWTH_STEPS: Final = 16
"""Steps in which the limit may grow from nothing to `max_num_seqs`: at one a second, well within a round."""
GROW_EVERY_S: Final = 1.0
"""Between two steps: what the last one let in must show in the KV cache first."""
START_SHARE: Final = 0.25
"""Share of `max_num_seqs` for an engine that has reported nothing yet."""


@dataclass(frozen=True)
class EngineLoad:
    """Load that an engine reports."""

    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of the KV cache in use, 0 to 1."""
    num_preemptions: int
    """Number of preemptions since the engine started."""
    at_s: float
    """Time of the report, in seconds on the engine's clock."""


@dataclass
class _Engine:
    limit: int
    num_preemptions: int = 0
    grown_s: float | None = None
    """Time at which the limit last grew, in seconds on the engine's clock."""

    def may_grow(self, now_s: float) -> bool:
        """Return whether the last step lies far enough back; a clock that has gone back has restarted."""
        return self.grown_s is None or not 0 <= now_s - self.grown_s < GROW_EVERY_S


class ConcurrencyLimit:
    """A limit per engine, between 1 and `max_num_seqs`. Pure: the same observations give the same limits."""

    def __init__(self, max_num_seqs: int) -> None:
        assert max_num_seqs >= 1
        self._max = max_num_seqs
        self._start = max(1, int(START_SHARE * max_num_seqs))
        self._step = max(1, max_num_seqs // GROWTH_STEPS)
        self._engines: dict[int, _Engine] = {}

    def observed(self, engine: int, load: EngineLoad) -> int:
        """Note the load that an engine reports, and return its limit from here on."""
        state = self._engines.setdefault(engine, _Engine(self._start))
        preempted = load.num_preemptions != state.num_preemptions and load.num_preemptions > 0
        state.num_preemptions = load.num_preemptions
        if preempted or load.kv_usage > SHRINK_ABOVE_KV_USAGE:
            state.limit = self._shrunk(state.limit, load)
        elif self._has_room(state, load) and state.may_grow(load.at_s):
            state.limit, state.grown_s = self._grown(state.limit, load), load.at_s
        return state.limit

    def of(self, engine: int) -> int:
        """Return requests that this engine is given."""
        return self._engines[engine].limit if engine in self._engines else self._start

    def total(self, engines: Iterable[int]) -> int:
        """Return requests that these engines are given together."""
        return sum(map(self.of, engines))

    def lost(self, engine: int) -> None:
        """Note that an engine is gone; one that returns under its number starts from the beginning."""
        self._engines.pop(engine, None)

    def export_state(self) -> list[list[int]]:
        """Return engines and their limits, as JSON values. Counters of preemptions begin again with the engines."""
        return [[engine, state.limit] for engine, state in self._engines.items()]

    def load_state(self, state: Iterable[Sequence[int]]) -> None:
        """Undo `export_state`, as far as `max_num_seqs` still allows it."""
        self._engines = {engine: _Engine(min(limit, self._max)) for engine, limit in state}

    @staticmethod
    def _has_room(state: _Engine, load: EngineLoad) -> bool:
        return load.kv_usage < GROW_BELOW_KV_USAGE and load.num_running + load.num_waiting >= state.limit

    def _shrunk(self, limit: int, load: EngineLoad) -> int:
        """Return a smaller limit, from what runs and not from the limit.

        So a second observation of the same overload changes nothing.
        """
        too_many = load.num_running or limit
        return max(1, min(limit, int(SHRINK_FACTOR * too_many)))

    def _grown(self, limit: int, load: EngineLoad) -> int:
        """Return the limit one step up, at most what the cache holds if requests take the present average."""
        step = min(limit + self._step, self._max)
        if load.kv_usage == 0:
            return step
        return max(limit, int(min(step, GROW_BELOW_KV_USAGE * load.num_running / load.kv_usage)))
