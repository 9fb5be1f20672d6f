"""Groups that want engines: which of them comes next, and which are in the frontier."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from longshore.policy.draws import Draw


@dataclass
class Group:
    """Responses of an admitted draw, by their indices."""

    number: int
    """Place in the order of admission."""
    waiting: deque[int]
    """Responses to launch."""
    running: dict[int, None] = field(default_factory=dict)
    """Launched responses that have not finished."""
    away: set[int] = field(default_factory=set)
    """Those of `running` that are on no engine, since they act in their environments or wait to return."""
    returning: deque[int] = field(default_factory=deque)
    """Those of `away` that wait for a gate."""
    finished: list[int] = field(default_factory=list)
    is_served: bool = False
    is_closed: bool = False
    """Cut off by the end of the round: what still finishes is noted for later rounds, and accepted in none."""

    @property
    def num_on_engines(self) -> int:
        """Responses that engines have."""
        return len(self.running) - len(self.away)

    @property
    def wants_engine(self) -> bool:
        """Whether gates have something to let through."""
        return bool(self.waiting or self.returning)


class AdmissionQueue:
    """Groups by their numbers, and the frontier: those of which something is on engines, or was let through."""

    def __init__(self) -> None:
        self._frontier: set[Draw] = set()
        self._queues: dict[bool, list[tuple[int, Draw, Group]]] = {True: [], False: []}
        """Heaps of what is in the frontier, and of what is not; entries that are not true any longer are skipped."""

    def push(self, draw: Draw, group: Group) -> None:
        """Note that a group wants engines; whoever has noted it already may do so again."""
        if group.wants_engine:
            heapq.heappush(self._queues[draw in self._frontier], (group.number, draw, group))

    def next(self, width: int | None) -> tuple[Draw, Group] | None:
        """Return the first group that a frontier of this width lets through; None: there is none."""
        inside = self._first(in_frontier=True)
        outside = self._first(in_frontier=False) if width is None or len(self._frontier) < width else None
        first = min((one for one in (inside, outside) if one is not None), default=None)
        return None if first is None else first[1:]

    def enter(self, draw: Draw, group: Group) -> None:
        """Take a group into the frontier."""
        if draw not in self._frontier:
            self._frontier.add(draw)
            self.push(draw, group)

    def leave(self, draw: Draw, group: Group) -> None:
        """Take a group out of the frontier, and let it wait if it wants engines."""
        self._frontier.discard(draw)
        self.push(draw, group)

    def _first(self, *, in_frontier: bool) -> tuple[int, Draw, Group] | None:
        queue = self._queues[in_frontier]
        while queue:
            _, draw, group = queue[0]
            if group.wants_engine and (draw in self._frontier) is in_frontier:
                return queue[0]
            heapq.heappop(queue)
        return None
