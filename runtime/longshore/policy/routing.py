"""Which engine a request goes to."""

import heapq
from collections.abc import Callable, Mapping, Sequence

from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId


class Router:
    """Sends requests to the least-loaded engine.

    Short rounds keep a group on one engine, which computes its prompt once (prefix cache); long rounds spread single
    responses, since one group of long responses would fill an engine.

    Every change of an engine's load costs logarithmic time: many engines decide as quickly as few.
    """

    def __init__(self, engines: Sequence[int], limit_of: Callable[[int], int | None] = lambda engine: None) -> None:
        """Give an engine at most `limit_of` requests at once; None: any number."""
        self._limit_of = limit_of
        self._load = dict.fromkeys(engines, 0)
        self._by_load = sorted((0, engine) for engine in engines)
        """A heap with the load of every engine; entries that are not true any longer are skipped."""
        self._home: dict[Draw, int] = {}
        self._placed: dict[ResponseId, int] = {}
        self._returning: dict[ResponseId, int] = {}
        """Engine that holds the tokens of an episode whose next turn is awaited."""

    def place(self, responses: Sequence[ResponseId], kind: RoundKind) -> Mapping[int, list[ResponseId]]:
        """Assign responses to engines, also those of a lost engine."""
        assert self._load, "there is no engine"
        placement: dict[int, list[ResponseId]] = {}
        for response in responses:
            engine = self._returning.pop(response, None)
            if engine is None and kind is not RoundKind.LONG:
                engine = self._home.get(response.draw)
            if engine not in self._load or not self._has_room(engine):
                engine = self._with_room()
                self._home[response.draw] = engine
            self._change_load(engine, 1)
            self._placed[response] = engine
            placement.setdefault(engine, []).append(response)
        return placement

    def ended(self, response: ResponseId, *, returns: bool = False) -> None:
        """Note that a response finished or was aborted; with `returns`, an episode that has another turn."""
        engine = self._placed.pop(response, None)
        if engine is not None and engine in self._load:
            self._change_load(engine, -1)
            if returns:
                self._returning[response] = engine

    @property
    def has_engines(self) -> bool:
        """Whether anything can be placed."""
        return bool(self._load)

    @property
    def engines(self) -> tuple[int, ...]:
        """Engines on which responses can be placed."""
        return tuple(self._load)

    def engine_of(self, response: ResponseId) -> int | None:
        """Return where a response runs."""
        return self._placed.get(response)

    def retire(self, engine: int) -> tuple[ResponseId, ...]:
        """Place nothing more on an engine; returns the responses that run there, which count until they end."""
        self._load.pop(engine, None)
        self._home = {draw: where for draw, where in self._home.items() if where != engine}
        return tuple(response for response, where in self._placed.items() if where == engine)

    def lost(self, engine: int) -> tuple[ResponseId, ...]:
        """Forget an engine that is gone, and return the responses that ran there, to be placed again."""
        self._load.pop(engine, None)
        orphans = tuple(response for response, where in self._placed.items() if where == engine)
        for response in orphans:
            del self._placed[response]
        self._home = {draw: where for draw, where in self._home.items() if where != engine}
        return orphans

    def joined(self, engine: int) -> None:
        """Note that an engine is there (again)."""
        self._load.setdefault(engine, 0)
        self._change_load(engine, 0)

    def _has_room(self, engine: int) -> bool:
        limit = self._limit_of(engine)
        return limit is None or self._load[engine] < limit

    def _with_room(self) -> int:
        """Return the least loaded engine, or another where that one bears less than others.

        None may have room for long.
        """
        engine = self._least_loaded()
        if self._has_room(engine):
            return engine
        roomy = [other for other in self._load if self._has_room(other)]
        return min(roomy, key=lambda other: (self._load[other], other), default=engine)

    def _least_loaded(self) -> int:
        while True:
            load, engine = self._by_load[0]
            if self._load.get(engine) == load:
                return engine
            heapq.heappop(self._by_load)

    def _change_load(self, engine: int, change: int) -> None:
        self._load[engine] += change
        heapq.heappush(self._by_load, (self._load[engine], engine))
