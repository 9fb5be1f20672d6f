"""Who gets GPUs next: whole gangs, by priority and then by age, with backfill that never delays the head of the queue.

A job that lacks GPUs of a pool is the *head* of that pool if no job before it is. A job behind a head may take GPUs
that the head needs only if the head can start just as early, in whatever order the running jobs end: nobody knows how
long they run. The head becomes startable at one of the amounts that are free now or after some of the running jobs
have ended, so jobs behind it may take what the smallest sufficient amount leaves over (`_Book.slack`).

A head may preempt jobs of strictly lower priority, if it can start when they are gone.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from longshore_operator.admission.demand import CLUSTER, GpuRequest, Key, Limits, Pool, Stage

Demand = Mapping[Pool, int]


class Why(Enum):
    """Why a job waits."""

    TOO_LARGE = auto()
    """It needs more than there is at all; it holds up nobody."""
    NO_QUOTA = auto()
    """The quota of its namespace is in use."""
    NO_CAPACITY = auto()
    """The GPUs of the cluster are in use."""
    BEHIND = auto()
    """There are GPUs, and the head of the queue may need them."""
    PREEMPTING = auto()
    """Jobs of lower priority make room for it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that waits."""

    why: Why
    needed: int = 0
    available: int = 0
    """GPUs of the resource that it lacks most."""
    resource: str = ""
    num_ahead: int = 0
    """Jobs before it in the queue."""
    head: Key | None = None
    """The job that it must not delay."""


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """What changes, and why the other jobs wait."""

    admitted: tuple[Key, ...] = ()
    preempted: Mapping[Key, Key] = field(default_factory=dict)
    """Job to stop, and the job that gets its GPUs."""
    waiting: Mapping[Key, Wait] = field(default_factory=dict)


@dataclass(slots=True)
class _Head:
    """The first job that waits for a pool, and what jobs behind it may take of the pools that it needs."""

    key: Key
    slack: dict[Pool, int]

    def leaves(self, demand: Demand) -> bool:
        return all(amount <= self.slack.get(pool, amount) for pool, amount in demand.items())

    def give(self, demand: Demand) -> None:
        for pool in self.slack.keys() & demand.keys():
            self.slack[pool] -= demand[pool]


class _Book:
    """GPUs of every pool: those that are free, and who holds the others."""

    def __init__(self, limits: Limits, holders: Iterable[GpuRequest]) -> None:
        self._limits = limits
        self._used: dict[Pool, int] = defaultdict(int)
        self._leaving: dict[Pool, int] = defaultdict(int)
        self._amounts: dict[Pool, list[int]] = defaultdict(list)
        self.reserved: dict[Pool, int] = defaultdict(int)
        """GPUs that the heads wait for."""
        self.holders: dict[Pool, list[GpuRequest]] = defaultdict(list)
        """Jobs that could be preempted."""
        for holder in holders:
            self.take(holder)

    def demand(self, request: GpuRequest) -> Demand:
        return self._limits.demand(request.key[0], request.gpus)

    def free(self, pool: Pool) -> int:
        return self._limits.size(pool) - self._used[pool]

    def take(self, request: GpuRequest) -> None:
        for pool, amount in self.demand(request).items():
            self._used[pool] += amount
            self._amounts[pool].append(amount)
            if request.stage is Stage.LEAVING:
                self._leaving[pool] += amount
            elif request.stage is Stage.ADMITTED:
                self.holders[pool].append(request)

    def leave(self, request: GpuRequest) -> None:
        """An admitted job is asked to stop: its GPUs stay in use until it has."""
        for pool, amount in self.demand(request).items():
            self._leaving[pool] += amount
            self.holders[pool].remove(request)

    def missing(self, pool: Pool, amount: int) -> int:
        """GPUs that are still missing when every job that leaves is gone and heads have taken theirs."""
        return amount - (self.free(pool) + self._leaving[pool] - self.reserved[pool])

    def slack(self, pool: Pool, amount: int) -> int:
        """What is left over of the smallest amount, free now or later, that suffices for this and for the heads before.

        A job that cannot run beside those heads has to wait until they have ended: it is left what it needs alone.
        """
        left = self._left_over(pool, self.reserved[pool] + amount)
        return left if left is not None else self._left_over(pool, amount) or 0

    def _left_over(self, pool: Pool, amount: int) -> int | None:
        """None: it never suffices. Sums of what holders give back are bits of a number."""
        sums = 1
        for held in self._amounts[pool]:
            sums |= sums << held
        short = amount - self.free(pool)
        if short <= 0:
            return -short
        sufficient = sums >> short
        return (sufficient & -sufficient).bit_length() - 1 if sufficient else None


def decide(requests: Iterable[GpuRequest], limits: Limits) -> QueueDecision:
    """Whom to admit and whom to preempt; once that is carried out, nothing is left to decide."""
    requests = tuple(requests)
    kept_back: set[Key] = set()
    while True:
        decision = _decide(requests, limits, kept_back)
        follows = _decide(_carried_out(requests, decision), limits, kept_back)
        admitted = [key for key in decision.admitted if key not in kept_back]
        if not admitted or not (follows.admitted or follows.preempted):
            return decision
        # A job that goes ahead of others can change which of them are heads, so that one of these would preempt it.
        kept_back.add(admitted[-1])


def _carried_out(requests: Iterable[GpuRequest], decision: QueueDecision) -> Iterator[GpuRequest]:
    admitted = frozenset(decision.admitted)
    for request in requests:
        if request.key in admitted:
            yield replace(request, stage=Stage.ADMITTED)
        elif request.key in decision.preempted:
            yield replace(request, stage=Stage.LEAVING)
        else:
            yield request


def _decide(requests: Iterable[GpuRequest], limits: Limits, kept_back: Collection[Key]) -> QueueDecision:
    """One round of decisions; jobs that are `kept_back` do not go ahead of a head."""
    requests = tuple(requests)
    book = _Book(limits, (request for request in requests if request.stage is not Stage.WAITING))
    heads: list[_Head] = []
    admitted: list[Key] = []
    preempted: dict[Key, Key] = {}
    waiting: dict[Key, Wait] = {}
    num_ahead = 0
    for request in sorted((one for one in requests if one.stage is Stage.WAITING), key=lambda one: one.order):
        demand = book.demand(request)
        too_large = [pool for pool, amount in demand.items() if amount > limits.size(pool)]
        if too_large:
            waiting[request.key] = _wait(Why.TOO_LARGE, demand, too_large, limits.size)
            continue
        lacking = [pool for pool, amount in demand.items() if amount > book.free(pool)]
        behind = next((head for head in heads if request.key in kept_back or not head.leaves(demand)), None)
        if not lacking and behind is None:
            admitted.append(request.key)
            book.take(request)
            for head in heads:
                head.give(demand)
            continue
        victims = _become_head(request, demand, lacking, book, heads)
        preempted |= {victim.key: request.key for victim in victims}
        why = _why(lacking, is_preempting=bool(victims))
        head_key = behind.key if behind is not None and why is Why.BEHIND else None
        waiting[request.key] = _wait(why, demand, lacking or list(demand), book.free, num_ahead, head_key)
        num_ahead += 1
    return QueueDecision(tuple(admitted), preempted, waiting)


def _why(lacking: list[Pool], *, is_preempting: bool) -> Why:
    if not lacking:
        return Why.BEHIND
    if is_preempting:
        return Why.PREEMPTING
    return Why.NO_QUOTA if _of_namespace(lacking) else Why.NO_CAPACITY


def _become_head(
    request: GpuRequest, demand: Demand, lacking: list[Pool], book: _Book, heads: list[_Head]
) -> list[GpuRequest]:
    """Protect the job from those behind it if it is the first that lacks GPUs of a pool; returns whom it preempts.

    A job that the quota of its namespace holds back keeps nothing of the cluster from others, unless it is about to
    start.
    """
    headed = {pool for head in heads for pool in head.slack}
    if all(pool in headed for pool in _of_namespace(lacking) or lacking):
        return []
    victims, is_next = _victims(request, demand, book)
    for victim in victims:
        book.leave(victim)
    protected = _of_namespace(lacking) if _of_namespace(lacking) and not is_next else list(demand)
    heads.append(_Head(request.key, {pool: book.slack(pool, demand[pool]) for pool in protected}))
    for pool in protected:
        book.reserved[pool] += demand[pool]
    return victims


def _of_namespace(pools: list[Pool]) -> list[Pool]:
    return [pool for pool in pools if pool[0] != CLUSTER]


def _victims(request: GpuRequest, demand: Demand, book: _Book) -> tuple[list[GpuRequest], bool]:
    """The least important jobs that must go for this one, none where that would not be enough; and whether it then
    starts as soon as they are gone."""
    missing = {pool: short for pool, amount in demand.items() if (short := book.missing(pool, amount)) > 0}
    candidates = {
        holder.key: holder for pool in missing for holder in book.holders[pool] if holder.priority < request.priority
    }
    chosen: list[GpuRequest] = []
    for holder in sorted(candidates.values(), key=lambda one: one.order, reverse=True):
        held = book.demand(holder)
        if any(missing.get(pool, 0) > 0 for pool in held):
            chosen.append(holder)
            missing = {pool: short - held.get(pool, 0) for pool, short in missing.items()}
    if any(short > 0 for short in missing.values()):
        return [], False
    for holder in sorted(chosen, key=lambda one: one.order):
        held = book.demand(holder)
        if all(short + held.get(pool, 0) <= 0 for pool, short in missing.items()):
            chosen.remove(holder)
            missing = {pool: short + held.get(pool, 0) for pool, short in missing.items()}
    return chosen, True


def _wait(
    why: Why, demand: Demand, pools: list[Pool], available: Callable[[Pool], int], num_ahead: int = 0,
    head: Key | None = None,
) -> Wait:  # fmt: skip
    pool = max(pools, key=lambda one: demand[one] - available(one))
    return Wait(why, demand[pool], max(0, available(pool)), pool[1], num_ahead, head)
