"""Decide which job is reconciled next, and how often one job may be.

Jobs of a namespace share its part of the operator, and namespaces have equal parts of what is asked for, by start-time
fair queueing (Goyal et al., "Start-time Fair Queueing", SIGCOMM 1996): each namespace has a virtual time, which grows
by what its passes cost, and the one that is furthest behind is next. One that was idle begins at the present, so that
it is served next however long the queue of another is, and cannot save its part for later.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from longshore_operator.identity import Key

EXPECTED_COST_S: Final = 0.02
"""Cost of a pass until it is known."""


@dataclass(slots=True)
class _Tenant:
    """A namespace with jobs that wait or are being reconciled."""

    waiting: deque[Key] = field(default_factory=deque)
    num_running: int = 0
    virtual_s: float = 0.0
    """Total cost of its passes."""
    is_queued: bool = False


class FairQueue:
    """Jobs that wait for a pass. A namespace has `max_running` slots; one is taken from `pop` until `done`."""

    def __init__(self, max_running: int) -> None:
        assert max_running >= 1, max_running
        self._max_running = max_running
        self._tenants: dict[str, _Tenant] = {}
        self._namespaces: list[tuple[float, int, str]] = []
        self._num_queued = 0
        self._present_s = 0.0
        self._num_waiting = 0
        self._num_running = 0

    def __len__(self) -> int:
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Passes of jobs that were taken from here."""
        return self._num_running

    def add(self, key: Key) -> None:
        """Add a job, which must not be waiting already."""
        tenant = self._tenants.get(key[0])
        if tenant is None:
            tenant = self._tenants[key[0]] = _Tenant(virtual_s=self._present_s)
        tenant.waiting.append(key)
        self._num_waiting += 1
        self._queue(key[0], tenant)

    def remove(self, key: Key) -> bool:
        """Remove a job; return whether it was waiting."""
        tenant = self._tenants.get(key[0])
        if tenant is None or key not in tenant.waiting:
            return False
        tenant.waiting.remove(key)
        self._num_waiting -= 1
        self._forget_if_idle()
        return True

    def pop(self) -> Key | None:
        """Return the next job; None if no job waits, or the namespaces of all that wait have no free slot."""
        while self._namespaces:
            start_s, _, namespace = heapq.heappop(self._namespaces)
            tenant = self._tenants[namespace]
            tenant.is_queued = False
            if not tenant.waiting:
                continue
            self._present_s = max(self._present_s, start_s)
            key = tenant.waiting.popleft()
            self._num_waiting -= 1
            self._num_running += 1
            tenant.num_running += 1
            tenant.virtual_s = start_s + EXPECTED_COST_S
            self._queue(namespace, tenant)
            return key
        return None

    def done(self, key: Key, cost_s: float) -> None:
        """Free the slot of a job after its pass."""
        tenant = self._tenants[key[0]]
        self._num_running -= 1
        tenant.num_running -= 1
        tenant.virtual_s += cost_s - EXPECTED_COST_S
        self._queue(key[0], tenant)
        self._forget_if_idle()

    def _forget_if_idle(self) -> None:
        """Forget all tenants if nothing is left to do, so that all begin at the same time (section 2 of the paper)."""
        if self._num_waiting or self._num_running:
            return
        self._present_s = max(tenant.virtual_s for tenant in self._tenants.values())
        self._tenants.clear()
        self._namespaces.clear()

    def _queue(self, namespace: str, tenant: _Tenant) -> None:
        if tenant.is_queued or not tenant.waiting or tenant.num_running >= self._max_running:
            return
        tenant.is_queued = True
        self._num_queued += 1
        heapq.heappush(self._namespaces, (max(self._present_s, tenant.virtual_s), self._num_queued, namespace))


class Bucket:
    """A rate limit: `burst` times at once, and `per_s` times a second in the long run."""

    __slots__ = ("_burst", "_per_s", "_tokens", "_updated_s")

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = burst
        self._updated_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until it may happen again; 0: now."""
        self._refill(now_s)
        return max(0.0, (1.0 - self._tokens) / self._per_s)

    def take(self, now_s: float, cost: float = 1.0) -> None:
        """Take `cost`; taking more than there is makes later ones wait longer."""
        self._refill(now_s)
        self._tokens -= cost

    def _refill(self, now_s: float) -> None:
        self._tokens = min(self._burst, self._tokens + self._per_s * max(0.0, now_s - self._updated_s))
        self._updated_s = now_s
